"""What few notebooks need: a folder per paper, one on speed, and a large GPU. In the library only `cli` imports it."""
