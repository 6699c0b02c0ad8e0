"""The command line: parse, call, print. Nothing is computed here."""

from louver.cli import bench, make, train, use
from louver.cli.app import app

__all__ = ["app", "bench", "main", "make", "train", "use"]


def main() -> None:
    """Run the command line."""
    app()
