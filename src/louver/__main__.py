"""``python -m louver`` is the command line."""

from louver.cli import main

main()
