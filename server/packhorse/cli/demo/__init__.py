"""`packhorse demo`: the whole way on this machine's own text."""

from packhorse.cli.demo.run import command

__all__ = ["command"]
