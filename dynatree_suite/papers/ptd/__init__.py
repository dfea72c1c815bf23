"""Progressive Tree Drafting: counts and fronts, its listings read literally, text overlap, and their figures."""
