"""`python -m turret`."""

import sys

from turret.cli import main

if __name__ == "__main__":
    sys.exit(main())
