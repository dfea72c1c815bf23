"""Speed: how cost grows, batches, rounding, and their figures."""
