"""Measuring decoding methods against each other: methods, protocol, records, metrics, trace, and the command.

Start reading at `protocol.run_benchmark`.
"""
