"""The takedowns that are in force: what every `NAME.takedown.toml` beside a dataset or mixture takes away now.

Owns putting the files of a mixture and its components together, and the open streams. Leaves reading one file again
when it changes to `followed_takedown`, and what follows for bins to `stream_request`, `open_stream` and `backend`.
"""

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from packhorse.dataset import (
    MANIFEST,
    TAKEDOWN_SUFFIX,
    MixtureDataset,
    PreparedDatasetError,
    Takedown,
    TakedownError,
    TakedownFile,
)
from packhorse.server.datasets.protocols import Dataset
from packhorse.server.datasets.refusals import not_served
from packhorse.server.datasets.stream_progress import StreamProgress
from packhorse.server.datasets.taken_away.followed_takedown import NO_FILE, FollowedTakedown
from packhorse.storage import look_at

FRESH_SECONDS = 0.25
"""Seconds after which an open stream's files are looked at again. Streams ask at every block, and a mixture may have a
file for each of a thousand components."""

NOTHING = Takedown()
"""The takedown if no file takes anything away."""


@dataclass
class _InForce:
    """The takedown of a dataset or mixture when it was last put together."""

    contents: tuple[TakedownFile, ...] = ()
    """The contents of files that the takedown was made of."""
    takedown: Takedown = NOTHING
    looked_at: float = float("-inf")
    """Time of the last look at the files, by `time.monotonic`."""


class Takedowns:
    """The takedowns below one root. Safe to be used by many threads.

    A file is read again when it changed. If it is wrong then, or skips positions that an open stream has passed, the
    previous content stays in force, and the log says why. A dataset whose file was never right is not served, because
    it would contain what the file should take away. A file that is gone stays in force until the server restarts.

    Args:
        root: the catalog's root; if that is one dataset, its file is beside it.
        refuse_link: a function that raises if a path leads out of the root.
    """

    def __init__(self, root: Path, refuse_link: Callable[[Path, str], None]) -> None:
        is_dataset = (root / MANIFEST).exists()
        self._folder = root.parent if is_dataset else root
        # A file beside the root is outside the root anyway.
        self._refuse_link = (lambda path, name: None) if is_dataset else refuse_link
        self._lock = threading.Lock()  # held to look up and note, never while files are read
        self._files: dict[str, FollowedTakedown] = {}  # by dataset or mixture: only requests for the same one wait
        self._in_force: weakref.WeakKeyDictionary[Dataset, _InForce] = weakref.WeakKeyDictionary()
        self._streams: weakref.WeakSet[StreamProgress] = weakref.WeakSet()

    def of(self, dataset: Dataset, *, is_open: bool = False) -> Takedown:
        """Returns what is taken away from a dataset or mixture now; see `Datasets.takedown`."""
        with self._lock:
            kept = self._in_force.setdefault(dataset, _InForce())
        if is_open and time.monotonic() - kept.looked_at < FRESH_SECONDS:
            return kept.takedown
        with self._file_of(dataset.name).lock:
            now = time.monotonic()
            if is_open and now - kept.looked_at < FRESH_SECONDS:
                return kept.takedown
            components = dataset.datasets if isinstance(dataset, MixtureDataset) else ()
            try:
                contents = self._contents([dataset, *components])
                # `NOTHING` stays the same object as long as no file takes anything away: streams go on while it does.
                stays_nothing = kept.takedown is NOTHING and not any(map(_takes_away, contents))
                if contents != kept.contents and not stays_nothing:
                    kept.takedown = put_together(dataset, contents)
            except PreparedDatasetError as error:
                raise not_served(dataset.name, str(error)) from None
            kept.contents, kept.looked_at = contents, now
            return kept.takedown

    def troubles(self) -> dict[str, str]:
        """Returns name of a dataset or mixture → what was wrong with its file at the last look."""
        return {name: file.trouble for name, file in list(self._files.items()) if file.trouble}

    def follow(self, progress: StreamProgress) -> None:
        """Follows an open stream until its caller drops `progress`."""
        with self._lock:
            self._streams.add(progress)

    def furthest(self, name: str) -> StreamProgress | None:
        """Returns the open stream of a dataset or mixture that has come furthest in its run; None without streams."""
        with self._lock:
            streams = [stream for stream in self._streams if stream.name == name]
        return max(streams, key=lambda stream: stream.run_position, default=None)

    def warn_of_unknown_ids(self) -> None:
        """Logs which ids in files changed since the last call do not exist in the dataset; may take a second."""
        for file in list(self._files.values()):
            file.warn_of_unknown_ids()

    def _contents(self, datasets: Sequence[Dataset]) -> tuple[TakedownFile, ...]:
        """Returns the content in force of the files of a dataset, or of a mixture and its components.

        Raises:
            TakedownError: a file is wrong or cannot be looked at, and none of its contents was ever right.
        """
        files = [self._file_of(dataset.name) for dataset in datasets]
        own = files[0]  # of the dataset or mixture itself
        try:
            looks = look_at(str(own.path), lambda: [file.look() for file in files])
        except TimeoutError as error:
            why = f"{own.path.name} cannot be looked at: {error.strerror}"
            own.note_no_answer(why)
            in_force = tuple(file.content for file in files if file.content is not None)
            if len(in_force) < len(files):
                raise TakedownError(why) from None
            return in_force
        return tuple(
            file.content_after(look, dataset) for file, look, dataset in zip(files, looks, datasets, strict=True)
        )

    def _file_of(self, name: str) -> FollowedTakedown:
        """Returns the file of a dataset or mixture, whether there is one or not."""
        with self._lock:
            if name not in self._files:
                self._files[name] = FollowedTakedown(name, self._folder, self._refuse_link, self._streams, _check)
            return self._files[name]


def _check(dataset: Dataset, content: TakedownFile) -> None:
    """Raises a TakedownError if a content names a component or key that does not exist."""
    put_together(dataset, (content,))


def _takes_away(file: TakedownFile) -> bool:
    return bool(file.redactions or file.skips)


def put_together(dataset: Dataset, files: tuple[TakedownFile, ...]) -> Takedown:
    """Returns the takedown that files make together.

    Args:
        dataset: the dataset or mixture.
        files: the file of the dataset or mixture, then either one for each component of the mixture, in order, or none.

    Raises:
        TakedownError: a file names a component or key that does not exist; the message names the dataset's file.
    """
    own, *of_components = files
    tables = dataset.key_tables
    try:
        own = own.resolved(tables)
        if isinstance(dataset, MixtureDataset):
            components = zip(tables.items(), of_components or [NO_FILE] * len(tables), strict=True)
            return Takedown.of_mixture(own, {name: file.resolved({"": keys}) for (name, keys), file in components})
        return Takedown.of_dataset(own)
    except TakedownError as error:
        raise TakedownError(f"{dataset.name}{TAKEDOWN_SUFFIX}: {error}") from None
