"""Deprecations: a public name warns for at least one minor release before it is removed.

Owns the decorators that let functions, classes, parameters and names of packages warn, and the list of all declared
deprecations. Leaves flags to `packhorse.cli.shared.old_flags`. deploy/guides/compatibility.md states the promise to
users; tests/surface checks it.
"""

import functools
import inspect
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

__all__ = ["DECLARED", "Deprecation", "declare", "deprecated", "deprecated_names", "deprecated_parameter"]

_Decorated = TypeVar("_Decorated", bound=Callable[..., Any])
"""The decorated function or class, to which a warning is added."""
_VERSION = re.compile(r"(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class Deprecation:
    """One public name that will be removed."""

    name: str
    """The name as tests/surface lists it, such as `packhorse.client.connect(old)` or `packhorse serve --old`."""
    since: str
    """The first minor release that warns, such as 0.2."""
    removed: str
    """The first minor release without it."""
    instead: str
    """What to use instead of it."""

    def __post_init__(self) -> None:
        """Raises a ValueError if no minor release would warn before the removal."""
        if minor_of(self.removed) <= minor_of(self.since):
            raise ValueError(
                f"{self.name} cannot go in {self.removed}: {self.since} is the first release that warns, and one minor "
                "release warns before"
            )

    def __str__(self) -> str:
        return f"{self.name} is deprecated since {self.since} and goes in {self.removed}: use {self.instead}"

    def warn(self, stacklevel: int = 1) -> None:
        """Warns with a FutureWarning, which Python shows not only to developers but also to users.

        Args:
            stacklevel: 1 if the warning points at the line that called the function that calls `warn`; 2 for one call
                further out, and so on.
        """
        warnings.warn(str(self), FutureWarning, stacklevel=stacklevel + 2)


DECLARED: dict[str, Deprecation] = {}
"""Name → deprecation, for all modules imported so far."""


def minor_of(version: str) -> tuple[int, int]:
    """Returns the minor release that a version belongs to, such as (0, 2) for 0.2.1; a ValueError if it has none."""
    match = _VERSION.match(version)
    if match is None:
        raise ValueError(f"{version!r} is no version: it begins with two numbers, such as 0.2")
    return int(match[1]), int(match[2])


def declare(name: str, *, since: str, removed: str, instead: str) -> Deprecation:
    """Adds a name to `DECLARED`, and returns its deprecation.

    Nothing warns yet: the decorators below do that. A metric cannot warn, so its documentation shows the returned text.

    Example:
        >>> print(declare("packhorse_old_total", since="0.2", removed="0.3", instead="packhorse_new_total"))
        packhorse_old_total is deprecated since 0.2 and goes in 0.3: use packhorse_new_total
        >>> del DECLARED["packhorse_old_total"]
    """
    deprecation = DECLARED[name] = Deprecation(name, since, removed, instead)
    return deprecation


def deprecated(name: str, *, since: str, removed: str, instead: str) -> Callable[[_Decorated], _Decorated]:
    """Decorates a function to warn when it is called, or a class to warn when an object of it is made.

    Like PEP 702, it also sets `__deprecated__`.

    Args:
        name: the name with its package, as users import it.
        since: the minor release that warns first.
        removed: the first minor release without it.
        instead: what to use.
    """
    deprecation = declare(name, since=since, removed=removed, instead=instead)

    def decorate(decorated: Any) -> Any:
        """Returns a function that warns; or the class itself, whose `__init__` then warns."""
        is_class = isinstance(decorated, type)
        inner: Callable[..., Any] = decorated.__init__ if is_class else decorated

        @functools.wraps(inner)
        def warn_and_call(*arguments: Any, **options: Any) -> Any:
            if not is_class or type(arguments[0]) is decorated:  # a subclass is not deprecated
                deprecation.warn()
            return inner(*arguments, **options)

        if is_class:
            decorated.__init__ = warn_and_call
        result: Any = decorated if is_class else warn_and_call
        result.__deprecated__ = str(deprecation)
        return result

    return decorate


def deprecated_parameter(
    name: str, old: str, *, since: str, removed: str, instead: str
) -> Callable[[_Decorated], _Decorated]:
    """Decorates a function to accept a parameter's old name too: it warns, and passes the value under the new name.

    Args:
        name: the function's name, with its package.
        old: the old name, which is no longer in the signature; only calls by keyword can use it.
        since: the minor release that warns first.
        removed: the first minor release without it.
        instead: the new name.
    """
    deprecation = declare(f"{name}({old})", since=since, removed=removed, instead=instead)

    def decorate(function: Any) -> Any:
        """Returns a function that also takes the old name."""
        if instead not in inspect.signature(function).parameters:
            raise ValueError(f"{name} has no parameter {instead}")

        @functools.wraps(function)
        def call_renamed(*arguments: Any, **options: Any) -> Any:
            if old in options:
                if instead in options:
                    raise TypeError(f"{name} takes {instead} or its old name {old}, not both")
                deprecation.warn()
                options[instead] = options.pop(old)
            return function(*arguments, **options)

        return call_renamed

    return decorate


def deprecated_names(
    package: str, names: Mapping[str, str], *, since: str, removed: str
) -> Callable[[Callable[[str], Any]], Callable[[str], Any]]:
    """Decorates a package's `__getattr__`, so that an old name still works: it warns, and returns what the new one is.

    Args:
        package: `__name__` of the package.
        names: old name → new name in the same package.
        since: the minor release that warns first.
        removed: the first minor release without them.
    """
    deprecations = {
        old: declare(f"{package}.{old}", since=since, removed=removed, instead=f"{package}.{new}")
        for old, new in names.items()
    }

    def decorate(load: Callable[[str], Any]) -> Callable[[str], Any]:
        @functools.wraps(load)
        def load_or_warn(name: str) -> Any:
            if name in deprecations:
                deprecations[name].warn()
                return load(names[name])
            return load(name)

        return load_or_warn

    return decorate
