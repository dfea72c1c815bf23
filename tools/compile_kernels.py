"""Compiles the forwards of few tokens for every kind of weights, so that processes that start together need not.

python3 -m tools.compile_kernels
"""

import numba
import numpy as np

from dynatree_cpu import kernels


def main() -> None:
    """Compile what a team of threads runs; numba keeps it on disk."""
    numbers, count = np.zeros(1, np.int64), 1
    kinds = [kernels.FLOAT32]
    kinds += [kernels.BFLOAT16_BITS] * kernels.BFLOAT16 + [kernels.FOUR_BITS, kernels.EIGHT_BITS] * kernels.QUANTISED
    for kind in kinds:
        arguments = numbers, count, count, np.empty(0, kind), numbers
        kernels.run.compile(tuple(map(numba.typeof, arguments)))


if __name__ == "__main__":
    main()
