"""Compiles the forwards of few tokens for every kind of weights, so that processes that start together need not.

python3 -m tools.compile_kernels
"""

from dynatree_cpu import kernels
from dynatree_cpu.preparing import Compiler


def main() -> None:
    """Compile each kind in a process of its own; numba keeps it on disk."""
    kinds = [kernels.FLOAT32]
    kinds += [kernels.BFLOAT16_BITS] * kernels.BFLOAT16 + [kernels.FOUR_BITS, kernels.EIGHT_BITS] * kernels.QUANTISED
    for compiler in [Compiler(kind) for kind in kinds]:
        compiler.wait()
        if failure := compiler.failure():
            raise SystemExit(failure)


if __name__ == "__main__":
    main()
