"""`python -m dynatree_lib COMMAND` is `dynatree COMMAND`."""

import sys

from .cli.main import main

if __name__ == "__main__":
    sys.exit(main())
