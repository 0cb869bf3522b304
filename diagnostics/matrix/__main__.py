"""Run the command line of the matrix as `python -m diagnostics.matrix`."""

import sys

from diagnostics.matrix.command import main

if __name__ == "__main__":
    sys.exit(main())
