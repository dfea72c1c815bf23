"""What only the papers' notebooks need, a folder per paper. Nothing but the command line imports it."""
