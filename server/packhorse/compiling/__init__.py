"""Loops that Numba compiles, kept on disk between processes, and the child processes that compile them."""

from packhorse.compiling.caching import (
    NotCompiledError,
    cache_folder,
    compile_in_children,
    compiled_elsewhere,
    end_with_parent,
    kernel,
    kernel_part,
    only_from_cache,
)

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
