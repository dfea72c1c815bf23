"""What reproduces, measures and teaches: benchmarks, proofs, costs, the papers, runs of notebooks, the course."""

PACKAGES = ("dynatree_lib", "dynatree_cpu", "dynatree_suite")
"""The project's packages. They lie side by side, and records and receipts name the state of all three."""
