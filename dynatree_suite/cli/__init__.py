"""The command line: `dynatree COMMAND`; one module per command, `main` looks it up."""
