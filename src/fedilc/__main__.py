"""`python -m fedilc`, the same as the command."""

from fedilc.cli import main

if __name__ == "__main__":
    main()
