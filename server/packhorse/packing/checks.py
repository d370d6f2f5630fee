"""The check of integers, where packers look for it; it is `packhorse.topology`'s."""

from packhorse.topology import checked_integer

__all__ = ["checked_integer"]
