"""Deprecations: what is public warns for one minor release before it goes.

Owns the warnings of functions, classes, parameters and names of packages, and the list of all that is declared. Leaves
flags to `packhorse.cli.shared.old_flags`. deploy/guides/compatibility.md has the promise, which tests/surface checks.
"""

import functools
import inspect
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

__all__ = ["DECLARED", "Deprecation", "declare", "deprecated", "deprecated_names", "deprecated_parameter"]

_Found = TypeVar("_Found", bound=Callable[..., Any])
_VERSION = re.compile(r"(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class Deprecation:
    """One public name that will go."""

    name: str
    """As tests/surface lists it: `packhorse.client.old`, `packhorse.client.connect(old)`, `packhorse serve --old`."""
    since: str
    """The minor release that warns first, such as 0.2."""
    removed: str
    """The first minor release without it."""
    instead: str
    """What to use."""

    def __post_init__(self) -> None:
        """Refuses a removal without a release that warns; a ValueError."""
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
            stacklevel: 1 for whoever calls the function that calls this.
        """
        warnings.warn(str(self), FutureWarning, stacklevel=stacklevel + 2)


DECLARED: dict[str, Deprecation] = {}
"""Name → deprecation, of all modules that are imported."""


def minor_of(version: str) -> tuple[int, int]:
    """Returns the major and minor number of a version; a ValueError if it has none."""
    found = _VERSION.match(version)
    if found is None:
        raise ValueError(f"{version!r} is no version: it begins with two numbers, such as 0.2")
    return int(found[1]), int(found[2])


def declare(name: str, *, since: str, removed: str, instead: str) -> Deprecation:
    """Puts a name on the list. Of a metric, whose readers see no warning, the text belongs into its documentation.

    Example:
        >>> print(declare("packhorse_old_total", since="0.2", removed="0.3", instead="packhorse_new_total"))
        packhorse_old_total is deprecated since 0.2 and goes in 0.3: use packhorse_new_total
        >>> del DECLARED["packhorse_old_total"]
    """
    found = DECLARED[name] = Deprecation(name, since, removed, instead)
    return found


def deprecated(name: str, *, since: str, removed: str, instead: str) -> Callable[[_Found], _Found]:
    """Lets a function warn when it is called, or a class when it is made, and sets `__deprecated__` as PEP 702 does.

    Args:
        name: under which it is imported, with its package.
        since: the minor release that warns first.
        removed: the first minor release without it.
        instead: what to use.
    """
    found = declare(name, since=since, removed=removed, instead=instead)

    def decorate(function: Any) -> Any:
        is_class = isinstance(function, type)
        inner: Callable[..., Any] = vars(function).get("__init__", object.__init__) if is_class else function

        @functools.wraps(inner)
        def warns(*arguments: Any, **options: Any) -> Any:
            if not is_class or type(arguments[0]) is function:  # not for each subclass
                found.warn()
            return inner(*arguments, **options)

        if is_class:
            function.__init__ = warns
        result: Any = function if is_class else warns
        result.__deprecated__ = str(found)
        return result

    return decorate


def deprecated_parameter(name: str, old: str, *, since: str, removed: str, instead: str) -> Callable[[_Found], _Found]:
    """Lets a function warn when it is given a parameter's old name, and takes the value under the new one.

    Args:
        name: of the function, with its package.
        old: the parameter that the function no longer has. It is given by name.
        since: the minor release that warns first.
        removed: the first minor release without it.
        instead: the parameter that gets the value.
    """
    found = declare(f"{name}({old})", since=since, removed=removed, instead=instead)

    def decorate(function: Any) -> Any:
        if instead not in inspect.signature(function).parameters:
            raise ValueError(f"{name} has no parameter {instead}")

        @functools.wraps(function)
        def renames(*arguments: Any, **options: Any) -> Any:
            if old in options:
                if instead in options:
                    raise TypeError(f"{name} takes {instead} or its old name {old}, not both")
                found.warn()
                options[instead] = options.pop(old)
            return function(*arguments, **options)

        return renames

    return decorate


def deprecated_names(
    package: str, names: Mapping[str, str], *, since: str, removed: str
) -> Callable[[Callable[[str], Any]], Callable[[str], Any]]:
    """Lets a package's `__getattr__` warn when it is asked for an old name, and give what has the new one.

    Args:
        package: `__name__` of the package.
        names: old name → new name in the same package.
        since: the minor release that warns first.
        removed: the first minor release without them.
    """
    found = {
        old: declare(f"{package}.{old}", since=since, removed=removed, instead=f"{package}.{new}")
        for old, new in names.items()
    }

    def decorate(load: Callable[[str], Any]) -> Callable[[str], Any]:
        @functools.wraps(load)
        def load_or_warn(name: str) -> Any:
            if name in found:
                found[name].warn()
                return load(names[name])
            return load(name)

        return load_or_warn

    return decorate
