"""A folder takes its name, also from an older one, in one step or never.

Owns the order of writing beside, making durable and renaming. Leaves which folders may be replaced to `refusals`, the
lock of whoever writes to `locked`, and files by themselves to `packhorse.storage`.
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

from packhorse.dataset.layout import (
    MANIFEST,
)
from packhorse.dataset.output.refusals import refuse_output
from packhorse.jobs import held_signals
from packhorse.storage import sync

_LOG = logging.getLogger(__name__)
_ASIDE = ".replaced"
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_CANNOT_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)


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
    rename, so a crash leaves the old folder or the new one, never half of one; after a crash between two renames, the
    next call gives the old folder its name back. Signals wait while folders are exchanged and leftovers are removed.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with written_whole(Path(folder, "set")) as partial:
        ...         _ = Path(partial, "manifest.json").write_text("{}")
        ...         before = Path(folder, "set").exists()
        ...     before, Path(folder, "set", "manifest.json").exists()
        (False, True)

    Args:
        output: the folder to be.
        overwrite: whether a prepared folder at `output` may be replaced.
        keeps_versions: whether it may be replaced together with its earlier versions, because the new one holds them.
        partial: the folder to write into, on the same file system, which is not there yet; None for one of a random
            hidden name beside `output`.
        meanwhile: a folder of files that are needed until the output is whole, and take space of the same disk.

    Raises:
        FileExistsError: `output` exists and may not be replaced; looked at now, and again at the end.
        OSError: the disk is full; the message names the folder, the bytes that are needed and those that are free.
    """
    output = output.resolve()
    _mend(output)
    refuse_output(output, overwrite=overwrite, keeps_versions=keeps_versions)
    output.parent.mkdir(parents=True, exist_ok=True)
    if partial is None:
        partial = output.with_name(f".{output.name}.{secrets.token_hex(4)}.partial")
    try:
        partial.mkdir()
        yield partial
        for path in [*partial.rglob("*"), partial]:
            sync(path)
        with held_signals():
            refuse_output(output, overwrite=overwrite, keeps_versions=keeps_versions)
            if output.exists():
                swap(partial, output)
                shutil.rmtree(partial, ignore_errors=True)  # the old one
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


def _mend(output: Path) -> None:
    """Repairs a crash between two renames: the old folder gets its name back, or goes if a new one has it."""
    aside = aside_of(output)
    if not (aside / MANIFEST).is_file():
        return
    if output.exists():
        shutil.rmtree(aside)
    else:
        aside.rename(output)
        _LOG.warning("%s is back: a crash had left it as %s while it was replaced", output, aside.name)


def _disk_full(output: Path, needed_bytes: int, meanwhile: Path | None) -> OSError:
    free_bytes = shutil.disk_usage(output.parent).free
    if meanwhile is not None:
        free_bytes += sum(512 * path.lstat().st_blocks for path in meanwhile.rglob("*"))
    what = f"bytes and {free_bytes:,} are free"
    if needed_bytes <= free_bytes:  # counted up to the file that failed, which is not there
        what = f"bytes: the next file did not fit into the {free_bytes:,} that are free, or a quota is reached"
    error = OSError(
        f"{output.parent} has too little space: {output.name} needs more than {needed_bytes:,} {what}; make room, or "
        "give an output on another disk"
    )
    error.errno = errno.ENOSPC
    return error


def _size_bytes(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*"))


def aside_of(folder: Path) -> Path:
    """Returns where a folder is while another takes its name, on systems that need several renames for that.

    Example:
        >>> aside_of(Path("/data/corpus"))
        PosixPath('/data/.corpus.replaced')
    """
    return folder.with_name(f".{folder.name}{_ASIDE}")


def left_aside(folder: Path) -> Path | None:
    """Returns the name that a crash between two renames took from a folder; None if `folder` has its own name.

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

    Where Linux and the file system can, there is always a folder at `old`. Elsewhere there is none for a moment, but
    never after a failure, which moves the old folder back.

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
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:  # not Linux, or an old C library
        raise OSError(errno.ENOSYS, "renameat2 is not there") from None
    if renameat2(_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(old), ctypes.c_uint(_RENAME_EXCHANGE)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(new), None, str(old))
