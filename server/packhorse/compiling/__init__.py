"""Loops that Numba compiles, and that are kept on disk from one process to the next.

Owns how they are declared, and which processes compile them; leaves what they do to the packages that have them.
"""

from packhorse.compiling.caching import (
    NotCompiledError,
    cache_folder,
    compiled_elsewhere,
    kernel,
    kernel_part,
    only_from_cache,
)
from packhorse.compiling.children import compile_in_children, end_with_parent

__all__ = [
    "NotCompiledError",
    "cache_folder",
    "compile_in_children",
    "compiled_elsewhere",
    "end_with_parent",
    "kernel",
    "kernel_part",
    "only_from_cache",
]
