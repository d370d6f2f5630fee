"""The release of packhorse that is installed: `installed_version`."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def installed_version() -> str:
    """Returns this packhorse's version; empty in a source tree that is not installed."""
    try:
        return version("packhorse")
    except PackageNotFoundError:
        return ""
