"""The plain forms of kernels, in place of the compiled ones, in this process.

Owns the exchange. A test that looks at both forms imports it.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def plain_kernels() -> Iterator[set[str]]:
    """Runs plain forms inside, and yields the names of all kernels that ran so, for which no request waits."""
    ran: set[str] = set()

    def noting(kernel):
        def run(*args):
            ran.add(kernel.py_func.__qualname__)
            return kernel.plain()(*args)

        return run

    modules = [module for name, module in list(sys.modules.items()) if name.startswith("packhorse.")]
    compiled = [
        (module, name, value)
        for module in modules
        for name, value in list(vars(module).items())
        if hasattr(value, "plain") and hasattr(value, "py_func")
    ]
    assert compiled
    for module, name, kernel in compiled:
        setattr(module, name, noting(kernel))
    try:
        yield ran
    finally:
        for module, name, kernel in compiled:
            setattr(module, name, kernel)


def names_of_plain_kernels() -> set[str]:
    """The names of all kernels that have a plain form, of modules that are imported."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("packhorse.")]
    values = [value for module in modules for value in vars(module).values()]
    return {value.py_func.__qualname__ for value in values if hasattr(value, "plain") and hasattr(value, "py_func")}
