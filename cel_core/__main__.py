"""``python -m cel_core``: the command line."""

import sys

from cel_core.cli import main

if __name__ == "__main__":
    sys.exit(main())
