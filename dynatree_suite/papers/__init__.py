"""The papers: their numbers (`published`), their prompts (`workloads`), and for each what only its notebooks need."""
