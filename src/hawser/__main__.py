"""`python -m hawser` is the `hawser` command."""

from hawser.cli.main import main

if __name__ == "__main__":
    main()
