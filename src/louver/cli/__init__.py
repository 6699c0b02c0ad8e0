"""The command line: parse, call, print. Nothing is computed here."""

from louver.cli import bench, make, serve, train, use
from louver.cli.app import app

__all__ = ["app", "bench", "main", "make", "serve", "train", "use"]


def main() -> None:
    """Run the command line."""
    app()
