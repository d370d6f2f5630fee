"""`python -m packhorse.cli`: the same as `packhorse`."""

from packhorse.cli import main

main(prog_name="packhorse")
