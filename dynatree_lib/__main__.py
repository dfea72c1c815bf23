"""`python -m dynatree_lib COMMAND` is `dynatree COMMAND`, for notebooks that were handed out when it stood here."""

from runpy import run_module

run_module("dynatree_suite", run_name="__main__", alter_sys=True)
