"""The texts of both DynaTree papers."""

from __future__ import annotations

SPLITS = {"wikitext-2": "validation", "pg-19": "test"}
"""Workload -> the split that its prompts are of; "test" for all others.

The authors' code reads WikiText-2's validation split (papers/benchmark_main_D8B3.py, lines 142 to 178). It reads PG-19
from a file data/pg19.parquet (benchmark_adaptive_pg19.py, lines 138 to 173) and does not say of which split that is;
"test" is this project's choice.
"""
