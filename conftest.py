"""What nbval runs notebooks with: kernels that are reached as those of `dynatree run` are."""

from contextlib import ExitStack

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Give nbval's kernels files for sockets: TCP ports that two workers take at once kill a kernel now and then."""
    if not (config.getoption("nbval", False) or config.getoption("nbval_lax", False)):
        return
    import nbval.kernel
    from traitlets.config import Config

    from dynatree_suite.runs.run import kernel_connection

    manager, stack = nbval.kernel.KernelManager, ExitStack()
    config.add_cleanup(stack.close)

    def connected(**options: object) -> object:
        return manager(config=Config({"KernelManager": stack.enter_context(kernel_connection())}), **options)

    nbval.kernel.KernelManager = connected
