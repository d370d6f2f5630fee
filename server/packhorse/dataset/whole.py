"""A folder that appears whole or not at all.

Owns the order of writing beside, making durable, and taking the place; leaves what may be replaced to `replaceable`.
"""

import errno
import logging
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from packhorse.dataset.exchange import aside_of, swap
from packhorse.dataset.layout import MANIFEST
from packhorse.dataset.replaceable import refuse_output
from packhorse.jobs import held_signals

_LOG = logging.getLogger(__name__)


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

    After an exception nothing is left behind and an existing `output` is as it was. Files are made durable before the
    rename, so a crash leaves the old folder or the new one, never half of one; where it came between two renames, the
    next call gives the old one its name back. Signals wait while folders are exchanged
    and while leftovers are removed.

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
    """Ends what a crash between renames has left: the old folder gets its name back, or goes if a new one has it."""
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
    error = OSError(
        f"{output.parent} has too little space: {output.name} needs at least {needed_bytes:,} bytes and "
        f"{free_bytes:,} are free; make room, or give an --output on another disk"
    )
    error.errno = errno.ENOSPC
    return error


def _size_bytes(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*"))


def sync(path: Path) -> None:
    """Makes a file or a folder durable: what was written to it, by any process of this machine, outlives a crash.

    Example:
        >>> sync(Path("datasets/corpus/manifest.json"))
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
