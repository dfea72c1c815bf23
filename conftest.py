"""What nbval runs notebooks with: kernels that are reached as those of `dynatree run` are."""

import tempfile

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Give nbval's kernels files for sockets: TCP ports that two workers take at once kill a kernel now and then."""
    if not (config.getoption("nbval", False) or config.getoption("nbval_lax", False)):
        return
    import nbval.kernel
    from traitlets.config import Config

    from dynatree_lib.suite.run import kernel_connection

    manager = nbval.kernel.KernelManager

    def connected(**options: object) -> object:
        folder = tempfile.TemporaryDirectory(prefix="kernel-", ignore_cleanup_errors=True)
        config.add_cleanup(folder.cleanup)
        return manager(config=Config({"KernelManager": kernel_connection(folder.name)}), **options)

    nbval.kernel.KernelManager = connected
