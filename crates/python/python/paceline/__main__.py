"""The command line: `paceline`, or `python -m paceline`."""

import sys

from . import _paceline


def main() -> int:
    """Runs the command line with this process's arguments, and returns the exit code."""
    return _paceline.main(["paceline", *sys.argv[1:]], sys.executable, ["-m", "paceline"])


if __name__ == "__main__":
    sys.exit(main())
