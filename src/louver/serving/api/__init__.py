"""The shapes that clients speak, a file each."""
