"""Decorators that compile loops with Numba, cache them on disk, and run a plain form until they are compiled."""

from packhorse.compiling.loops import HAS_NUMBA, inlined, kernel, kernel_or, kernel_part
from packhorse.compiling.plain import plain_form

__all__ = ["HAS_NUMBA", "inlined", "kernel", "kernel_or", "kernel_part", "plain_form"]
