"""`python -m lionnb` is the `lionnb` command."""

from lionnb.cli import main

if __name__ == "__main__":
    main()
