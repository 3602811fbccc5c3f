"""`python -m isostep`, and so `accelerate launch -m isostep`."""

import sys

from isostep.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
