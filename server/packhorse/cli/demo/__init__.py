"""`packhorse demo`: from text to training on this machine."""

from packhorse.cli.demo.run import command

__all__ = ["command"]
