"""Writing a folder beside its final name, and giving it that name in one step, also if an older folder has it.

Owns the order: write, make durable, rename; and repairs after a crash. Leaves which folders may be replaced to
`refusals`, the lock to `locked`, and replacing single files to `packhorse.storage`.
"""

import ctypes
import errno
import logging
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from packhorse.dataset.layout import MANIFEST
from packhorse.dataset.output.refusals import refuse_output
from packhorse.jobs import held_signals
from packhorse.storage import sync

_LOG = logging.getLogger(__name__)
_BLOCK_BYTES = 512
"""The unit of `st_blocks`, on every file system."""
_ASIDE = ".replaced"
"""The end of the name that an old folder has for a moment while a new one takes its name, see `aside_of`."""
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
"""Arguments of Linux's renameat2(2): a path is relative to the working directory; two names are exchanged."""
_CANNOT_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)
"""Errors of renameat2 if the system or the file system cannot exchange names."""


@contextmanager
def written_whole(
    output: Path,
    *,
    overwrite: bool = False,
    keeps_versions: bool = False,
    partial: Path | None = None,
    meanwhile: Path | None = None,
) -> Iterator[Path]:
    """Gives a folder beside `output` to write into, and renames it to `output` at the end.

    After an exception nothing is left behind and an existing `output` is unchanged. Files are made durable before the
    rename, so a crash leaves the old folder or the new one, never half of one. Some systems cannot exchange two folders
    in one step; after a crash between their renames, the next call gives the old folder its name back. Signals are held
    back while folders are exchanged and leftovers are removed.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with written_whole(Path(folder, "set")) as partial:
        ...         _ = Path(partial, "manifest.json").write_text("{}")
        ...         before = Path(folder, "set").exists()
        ...     before, Path(folder, "set", "manifest.json").exists()
        (False, True)

    Args:
        output: the final name of the folder.
        overwrite: whether a prepared folder at `output` may be replaced.
        keeps_versions: whether a folder with earlier versions may be replaced, because the new folder holds them too.
        partial: the folder to write into, which must not exist, on the same file system; None for a random hidden name
            beside `output`.
        meanwhile: a folder of temporary files on the same disk, which is needed only until the end. Its size counts as
            needed in the message of a full disk.

    Raises:
        FileExistsError: `output` exists and may not be replaced. This is checked at the beginning and at the end. Or
            `partial` exists, and stays as it is.
        OSError: the disk is full; the message names the folder, the bytes that are needed and the bytes that are free.
    """
    output = output.resolve()
    _repair(output)
    refuse_output(output, overwrite=overwrite, keeps_versions=keeps_versions)
    output.parent.mkdir(parents=True, exist_ok=True)
    if partial is None:
        partial = output.with_name(f".{output.name}.{secrets.token_hex(4)}.partial")
    elif os.path.lexists(partial):  # not ours: the handler below must not remove it
        raise FileExistsError(f"{partial} is there already, and a folder is written from its beginning: remove it")
    try:
        partial.mkdir()
        yield partial
        for path in [*partial.rglob("*"), partial]:
            sync(path)
        with held_signals():
            refuse_output(output, overwrite=overwrite, keeps_versions=keeps_versions)
            if output.exists():
                swap(partial, output)
                shutil.rmtree(partial, ignore_errors=True)  # now the old folder
            else:
                partial.rename(output)
            sync(output.parent)
    except BaseException as error:
        with held_signals():
            needed_bytes = _size_bytes(partial) + (_size_bytes(meanwhile) if meanwhile else 0)
            shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _disk_full(output, needed_bytes, meanwhile) from None
        raise


def _repair(output: Path) -> None:
    """Repairs a crash between two renames: gives the old folder its name back, or removes it if a new one has it."""
    aside = aside_of(output)
    if not (aside / MANIFEST).is_file():
        return
    if output.exists():
        shutil.rmtree(aside)
    else:
        aside.rename(output)
        _LOG.warning("%s is back: a crash had left it as %s while it was replaced", output, aside.name)


def _disk_full(output: Path, needed_bytes: int, meanwhile: Path | None) -> OSError:
    """Returns an error that says how many bytes the output needs at least, and how many are free."""
    free_bytes = shutil.disk_usage(output.parent).free
    if meanwhile is not None:  # it is still there, and its bytes are among the needed ones: what it holds is available
        free_bytes += sum(_BLOCK_BYTES * path.lstat().st_blocks for path in meanwhile.rglob("*"))
    if needed_bytes > free_bytes:
        free = f" and {free_bytes:,} are free"
    else:  # the file that failed is not counted, because it was not created
        free = f": the next file did not fit into the {free_bytes:,} that are free, or a quota is reached"
    error = OSError(
        f"{output.parent} has too little space: {output.name} needs more than {needed_bytes:,} bytes{free}; make room, "
        "or give an output on another disk"
    )
    error.errno = errno.ENOSPC
    return error


def _size_bytes(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*"))


def aside_of(folder: Path) -> Path:
    """Returns the name that a folder has for a moment while a new one takes its name, if that needs several renames.

    Example:
        >>> aside_of(Path("/data/corpus"))
        PosixPath('/data/.corpus.replaced')
    """
    return folder.with_name(f".{folder.name}{_ASIDE}")


def left_aside(folder: Path) -> Path | None:
    """Returns the proper path of a folder that a crash between two renames left under the name of `aside_of`.

    Returns None if `folder` has no such name, or if another folder has the proper one.

    Example:
        >>> left_aside(Path("/data/.corpus.replaced"))
        PosixPath('/data/corpus')
    """
    name = folder.name
    if not (name.startswith(".") and name.endswith(_ASIDE)):
        return None
    whole = folder.with_name(name[1 : -len(_ASIDE)])
    return None if whole.exists() else whole


def swap(new: Path, old: Path) -> None:
    """Exchanges the names of two folders of one file system.

    If Linux and the file system can, the exchange is one step, and there is always a folder at `old`. Otherwise it
    takes three renames, and there is none for a moment; if the second rename fails, the old folder gets its name back.

    Raises:
        OSError: the exchange failed; both folders have their old names.
    """
    try:
        _exchange(new, old)
    except OSError as error:
        if error.errno not in _CANNOT_EXCHANGE:
            raise
        aside = aside_of(old)
        old.rename(aside)
        try:
            new.rename(old)
        except BaseException:
            aside.rename(old)
            raise
        aside.rename(new)


def _exchange(new: Path, old: Path) -> None:
    """Exchanges the names of two folders in one step, by Linux's renameat2."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:  # not Linux, or an old C library
        raise OSError(errno.ENOSYS, "renameat2 is not there") from None
    if renameat2(_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(old), ctypes.c_uint(_RENAME_EXCHANGE)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(new), None, str(old))
