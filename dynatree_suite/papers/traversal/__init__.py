"""Traversal Verification: its tables, causes of its gain, what a decision costs, which rule when."""
