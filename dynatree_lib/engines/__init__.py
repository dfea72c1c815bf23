"""Faster ways to run forwards and texts: static buffers with CUDA graphs, batches, the strongest plain loop."""
