"""Measuring decoding methods against each other: methods, protocol, records, metrics, statistics, tables.

Start reading at `protocol.run_benchmark`.
"""
