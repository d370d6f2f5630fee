"""`python -m packhorse`, which is the command `packhorse`."""

from packhorse.cli import main

if __name__ == "__main__":
    main(prog_name="packhorse")
