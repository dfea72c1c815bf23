"""The command line of `dynatree` with two methods more, llama.cpp's programs and OpenVINO GenAI.

python3 -m tools.peers bench --methods ar-fast,llama-cpp,llama-cpp:tool=lookup,openvino:weights=int8 ...
"""

from __future__ import annotations

import sys

from dynatree_suite.bench.methods import METHODS
from dynatree_suite.cli.main import main

from . import llama_cpp, openvino

PEERS = {llama_cpp.NAME: llama_cpp.METHOD, openvino.NAME: openvino.METHOD}


def known() -> None:
    """Add the peers to the methods."""
    METHODS.update(PEERS)


if __name__ == "__main__":
    known()
    sys.exit(main())
