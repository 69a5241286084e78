"""One test for every bug that was ever found."""
