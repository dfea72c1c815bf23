"""`python -m dynatree_lib.training`, the same command as `dynatree train`."""

import argparse

from . import configure, main

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="dynatree train")
    configure(parser)
    raise SystemExit(main(parser.parse_args()))
