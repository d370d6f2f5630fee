"""The lock that a process holds while it writes a folder, and the hidden work folder that contains the lock.

Owns the work folder's name, and the message if another process holds the lock. Locks in general are in
`packhorse.storage`, and what a prepare keeps in the work folder is in `packhorse.prepare`.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from packhorse.jobs import held_signals
from packhorse.storage import LockHeldError, hold_lock

LOCK = "lock"
"""The file in the work folder that is locked; it names the process that holds it."""


@contextmanager
def locked(output: Path) -> Iterator[Path]:
    """Holds the lock of a folder to be written, and gives the hidden work folder beside it, such as .corpus.work.

    The system releases the lock when the process ends, however it ends. At the end, a work folder that holds only the
    lock is removed.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with locked(Path(folder, "set")) as work:
        ...         work.name, [path.name for path in work.iterdir()]
        ...     work.exists()
        ('.set.work', ['lock'])
        False

    Args:
        output: the folder to be written; symbolic links are followed.

    Raises:
        BlockingIOError: another process holds the lock; the message says which, where, and since when.
        OSError: the body, or taking the lock, raised it, for example because the disk is full. A file name inside the
            work folder is replaced by the output's.
    """
    work = output.resolve()
    work = work.with_name(f".{work.name}.work")
    with ExitStack() as stack:
        try:
            stack.enter_context(hold_lock(work / LOCK, wait_seconds=0))
        except LockHeldError as error:
            raise BlockingIOError(
                f"{output} is being prepared already, by {error.holder}; wait until it is done, or give another output"
            ) from None
        except OSError as error:
            raise _of_output(error, output, work) from None
        try:
            yield work
        except OSError as error:
            raise _of_output(error, output, work) from error.__cause__  # the same error, which keeps its cause
        finally:
            with held_signals():  # so that a command that ends leaves no empty work folder
                if os.listdir(work) == [LOCK]:
                    shutil.rmtree(work)


def _of_output(error: OSError, output: Path, work: Path) -> OSError:
    """Returns the error; it gets the output's name if it named no file, or one in the work folder."""
    if error.strerror and (error.filename is None or Path(os.fsdecode(error.filename)).is_relative_to(work)):
        error.filename = str(output)
    return error
