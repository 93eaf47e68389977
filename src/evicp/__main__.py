"""`python -m evicp` is the command line."""

from evicp.cli import main

if __name__ == "__main__":
    main()
