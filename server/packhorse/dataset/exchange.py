"""One folder takes another's place in a single step, or as nearly so as the system allows.

Owns the swap; leaves what is written and what may be replaced to `whole` and `replaceable`.
"""

import ctypes
import errno
import os
from pathlib import Path

_ASIDE = ".replaced"
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_CANNOT_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)


def swap(new: Path, old: Path) -> None:
    """Lets two folders of one file system trade their names.

    Where Linux and the file system can, there is no moment without a folder at `old`. Elsewhere there is a short one,
    but never after a failure: what was moved aside is put back.

    Raises:
        OSError: they could not; both are where they were.
    """
    try:
        _exchange(new, old)
    except OSError as error:
        if error.errno not in _CANNOT_EXCHANGE:
            raise
        _swap_by_three_renames(new, old)


def aside_of(folder: Path) -> Path:
    """Returns where a folder is for the moment in which another takes its name.

    Example:
        >>> aside_of(Path("/data/corpus"))
        PosixPath('/data/.corpus.replaced')

    Args:
        folder: a prepared one.
    """
    return folder.with_name(f".{folder.name}{_ASIDE}")


def left_aside(folder: Path) -> Path | None:
    """Returns the folder whose name is free because a crash came between two renames; None where `folder` is no such.

    Example:
        >>> left_aside(Path("/data/.corpus.replaced"))
        PosixPath('/data/corpus')

    Args:
        folder: any in a data root.
    """
    name = folder.name
    if not (name.startswith(".") and name.endswith(_ASIDE)):
        return None
    whole = folder.with_name(name[1 : -len(_ASIDE)])
    return None if whole.exists() else whole


def _exchange(new: Path, old: Path) -> None:
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:  # not Linux, or an old C library
        raise OSError(errno.ENOSYS, "renameat2 is not there") from None
    if renameat2(_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(old), ctypes.c_uint(_RENAME_EXCHANGE)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(new), None, str(old))


def _swap_by_three_renames(new: Path, old: Path) -> None:
    aside = aside_of(old)
    old.rename(aside)
    try:
        new.rename(old)
    except BaseException:
        aside.rename(old)
        raise
    aside.rename(new)
