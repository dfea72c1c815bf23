"""Measuring decoding methods against each other: methods, protocol, records, metrics, cost model, exact enumeration.

Start reading at `protocol.run_benchmark`.
"""
