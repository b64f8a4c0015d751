"""`python -m tilesmith`: the command line, where the package is on the path but not installed."""

from tilesmith.cli import main

if __name__ == "__main__":  # child processes of a benchmark import this module again
    main()
