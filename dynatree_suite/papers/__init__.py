"""The papers' numbers (`published`), their prompts (`workloads`), and a folder for each paper with what its notebooks need."""
