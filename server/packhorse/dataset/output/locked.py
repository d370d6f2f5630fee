"""The lock of whoever writes a folder."""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from packhorse.jobs import held_signals
from packhorse.storage import LockHeldError, hold_lock

LOCK = "lock"
"""The file of the work folder that is locked, and names the holder."""


@contextmanager
def locked(output: Path) -> Iterator[Path]:
    """Holds the lock of a folder to be written, and gives the hidden work folder beside it.

    The system releases the lock when the process ends, however it ends. A work folder that is empty afterwards is
    removed.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with locked(Path(folder, "set")) as work:
        ...         work.name, [path.name for path in work.iterdir()]
        ...     work.exists()
        ('.set.work', ['lock'])
        False

    Args:
        output: the folder to be; symbolic links are followed.

    Raises:
        BlockingIOError: another process holds it; the message says which, where, and since when.
        OSError: of the work, such as a full disk; it names the output.
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
            raise _of_output(error, output, work) from error.__cause__
        finally:
            with held_signals():
                if os.listdir(work) == [LOCK]:
                    shutil.rmtree(work)


def _of_output(error: OSError, output: Path, work: Path) -> OSError:
    """Returns an error, such as of a full disk, that names the output: users do not know the folder beside it."""
    if error.strerror and (error.filename is None or Path(os.fsdecode(error.filename)).is_relative_to(work)):
        error.filename = str(output)
    return error
