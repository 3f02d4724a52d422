"""`python -m sparsesnn` is `sparsesnn`."""

import sys

from sparsesnn.cli import main

if __name__ == "__main__":
    sys.exit(main())
