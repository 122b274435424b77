"""`python -m parts_store.cli`, the same as `parts-store`."""

import sys

from parts_store.cli import main

if __name__ == "__main__":
    sys.exit(main())
