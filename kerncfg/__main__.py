"""`python -m kerncfg` is the `kerncfg` command."""

import sys

from kerncfg.cli import main

if __name__ == "__main__":
    sys.exit(main())
