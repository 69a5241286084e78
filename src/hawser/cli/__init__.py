"""The `hawser` command: one package per command group. A command's module is imported when it runs."""
