"""The `hawser` command: one module per command group, imported when its command is run."""
