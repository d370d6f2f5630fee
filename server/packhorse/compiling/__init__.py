"""Loops that Numba compiles, their plain forms, the cache on disk, and compiling ahead of requests."""

from packhorse.compiling.loops import HAS_NUMBA, inlined, kernel, kernel_or, kernel_part
from packhorse.compiling.plain import plain_form

__all__ = ["HAS_NUMBA", "inlined", "kernel", "kernel_or", "kernel_part", "plain_form"]
