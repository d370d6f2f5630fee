"""The takedowns that are in force: every `NAME.takedown.toml` beside a dataset or mixture, read again when it changes.

Owns when a file takes effect, which open streams prevent that, and which of its ids do not exist. Leaves the content of
a file to `packhorse.dataset`, and what follows for bins to `stream_request`, `open_stream` and `backend`.
"""

import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset import (
    MANIFEST,
    TAKEDOWN_SUFFIX,
    MixtureDataset,
    PreparedDatasetError,
    Redaction,
    Takedown,
    TakedownError,
    TakedownFile,
    read_ids_of,
    takedown_text,
)
from packhorse.formats.keys import shown_key
from packhorse.server.datasets.catalog import not_served
from packhorse.server.datasets.protocols import Dataset
from packhorse.server.datasets.stream_progress import StreamProgress
from packhorse.storage import Stamp, look_at, stamp_of

_LOG = logging.getLogger(__name__)

FRESH_SECONDS = 0.25
"""Seconds after which an open stream's files are looked at again. Not at every block, when the stream asks: a mixture
may have a file for each of a thousand components."""

MOST_LOOKED_UP = 10_000
"""Most ids of a redaction that are looked up for the log: each takes about 70 microseconds of a processor."""

NOTHING = Takedown()
"""The takedown if no file takes anything away."""

_MOST_NAMED = 10
"""Most ids, and most keys, that a message lists."""
_NO_FILE = TakedownFile()
"""The content of a file that does not exist."""

Stamps = tuple[tuple[Path, Stamp | None], ...]
"""(path, stamp or None if it cannot be read) of a takedown's file, then of each file of ids that it names."""


@dataclass
class _Read:
    """What is known of one takedown's file: the content in force, and what is wrong with a newer one."""

    file: TakedownFile | None = None
    """The content in force; None if no content was ever right."""
    stamps: Stamps = ()
    """Stamps of the content in force: those of the file, and of the files of ids that it names."""
    refused: Stamps = ()
    """Stamps of the content that was refused last. The same content is not read again."""
    logged: Stamps = ()
    """Stamps of the content about which the log has a line."""
    why: str = ""
    """What is wrong with the content now; empty if nothing is."""

    def refuse(self, stamps: Stamps, why: str, name: str) -> None:
        """Leaves the content in force as it was, and logs once why. If there is none, the dataset is not served."""
        if self.logged != stamps:
            self.logged = stamps
            if self.file is None:
                _LOG.error("%s is not served: %s", name, why)
            else:
                _LOG.error("%s; what it said before stays in force", why)
        self.refused, self.why = stamps, why


@dataclass
class _InForce:
    """The takedown of a dataset or mixture when it was last put together."""

    files: tuple[TakedownFile, ...] = ()
    """Contents that the takedown was made of."""
    takedown: Takedown = NOTHING
    looked_at: float = float("-inf")
    """Time of the last look at the files, by `time.monotonic`."""


class Takedowns:
    """The takedowns below one root. Safe to be used by many threads.

    A file is read again when it changed. If it is wrong then, or skips positions that an open stream has passed, the
    content before it stays in force, and the log says why. A dataset whose file was never right is not served, because
    it would contain what the file should take away. A file that is gone stays in force until the server restarts.

    Args:
        root: of the catalog; if that is one dataset, its file is beside it.
        refuse_link: raises if a path leads out of the root.
    """

    def __init__(self, root: Path, refuse_link: Callable[[Path, str], None]) -> None:
        is_dataset = (root / MANIFEST).exists()
        self._folder = root.parent if is_dataset else root
        self._refuse_link = (lambda path, name: None) if is_dataset else refuse_link
        self._lock = threading.Lock()  # held to look up and note, never while files are read
        self._reading: dict[str, threading.RLock] = {}  # by dataset or mixture: only requests for the same one wait
        self._read: dict[str, _Read] = {}
        self._in_force: weakref.WeakKeyDictionary[Dataset, _InForce] = weakref.WeakKeyDictionary()
        self._streams: weakref.WeakSet[StreamProgress] = weakref.WeakSet()
        self._changed: dict[str, Dataset] = {}  # datasets whose file was read since ids were looked up
        self._looked_up: set[tuple[str, str]] = set()  # (name, digest) of redactions

    def of(self, dataset: Dataset, *, is_open: bool = False) -> Takedown:
        """Returns what is taken away from a dataset or mixture now; see `Datasets.takedown`."""
        with self._lock:
            kept = self._in_force.setdefault(dataset, _InForce())
            reading = self._reading.setdefault(dataset.name, threading.RLock())
        if is_open and time.monotonic() - kept.looked_at < FRESH_SECONDS:
            return kept.takedown
        with reading:
            now = time.monotonic()
            if is_open and now - kept.looked_at < FRESH_SECONDS:
                return kept.takedown
            datasets = dataset.datasets if isinstance(dataset, MixtureDataset) else ()
            try:
                files = self._files([dataset, *datasets])
                if files != kept.files and not (kept.takedown is NOTHING and not any(map(_says, files))):
                    kept.takedown = put_together(dataset, files)
            except PreparedDatasetError as error:
                raise not_served(dataset.name, str(error)) from None
            kept.files, kept.looked_at = files, now
            return kept.takedown

    def troubles(self) -> dict[str, str]:
        """Returns name of a dataset or mixture → what was wrong with its file at the last look."""
        return {name: read.why for name, read in list(self._read.items()) if read.why}

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
        with self._lock:
            changed = {name: (dataset, self._read[name].file) for name, dataset in self._changed.items()}
            self._changed.clear()
        for name, (dataset, file) in changed.items():
            for number, (redaction, digest) in enumerate(zip(file.redactions, file.chain, strict=True) if file else ()):
                if (name, digest) in self._looked_up:
                    continue
                self._looked_up.add((name, digest))
                names = unknown_names(dataset, redaction, most=MOST_LOOKED_UP)
                if len(names):
                    _LOG.warning(
                        "%s%s: redact[%d] names %s, and there is no such sequence; `packhorse redact %s --check` looks "
                        "at every id",
                        *(name, TAKEDOWN_SUFFIX, number, names, name),
                    )

    def _files(self, datasets: Sequence[Dataset]) -> tuple[TakedownFile, ...]:
        """Returns the content in force of the files of a dataset, or of a mixture and its components.

        Raises:
            TakedownError: a file is wrong or cannot be looked at, and none of its contents was ever right.
        """

        def look() -> list[tuple[bool, Stamps]]:
            """Returns of each file whether it is missing, and its stamps."""
            paths = [self._path(each.name) for each in datasets]
            reads = [self._read.get(each.name) for each in datasets]
            return [(_is_missing(path), self._stamps(path, read)) for path, read in zip(paths, reads, strict=True)]

        name = datasets[0].name
        try:
            looks = look_at(str(self._path(name)), look)
        except TimeoutError as error:
            why = f"{name}{TAKEDOWN_SUFFIX} cannot be looked at: {error.strerror}"
            own = self._read.setdefault(name, _Read())
            own.refuse(((self._path(name), None),), why, name)
            reads = [self._read.get(each.name) for each in datasets]
            before = tuple(read.file for read in reads if read is not None and read.file is not None)
            if len(before) < len(datasets):
                raise TakedownError(why) from None
            return before
        return tuple(self._file(each.name, each, *look) for each, look in zip(datasets, looks, strict=True))

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}{TAKEDOWN_SUFFIX}"

    def _file(self, name: str, dataset: Dataset, is_missing: bool, stamps: Stamps) -> TakedownFile:
        """Returns a file's content in force; raises a TakedownError if none of its contents was ever right."""
        with self._lock:
            reading = self._reading.setdefault(name, threading.RLock())
        with reading:  # the file is read for the dataset itself and for each mixture that has it as a component
            return self._current(name, dataset, is_missing, stamps)

    def _current(self, name: str, dataset: Dataset, is_missing: bool, stamps: Stamps) -> TakedownFile:
        """Returns as `_file`, which holds the lock; reads the file if it has new stamps."""
        path = self._path(name)
        if name not in self._read:
            # Without a file, nothing is taken away until a file appears that is right.
            self._read[name] = _Read(_NO_FILE, ((path, None),)) if is_missing else _Read()
        read = self._read[name]
        if stamps == read.stamps:
            read.why = ""
        if stamps not in (read.stamps, read.refused):
            self._reread(name, path, stamps, read, dataset)
        if read.file is None:
            raise TakedownError(read.why)
        return read.file

    def _reread(self, name: str, path: Path, stamps: Stamps, read: _Read, dataset: Dataset) -> None:
        """Reads a changed file. Its content comes into force if it is right and no open stream has passed its skips."""
        before = read.file
        if stamps[0][1] is None:
            why = "is gone" if _is_missing(path) else "cannot be read, or is a link that leads nowhere"
            read.refuse(stamps, f"{path.name} {why}", name)
            return
        try:
            file = self._parsed(path)
            put_together(dataset, (file,))
        except PreparedDatasetError as error:
            read.refuse(stamps, str(error), name)
            if isinstance(error.__cause__, OSError):
                read.refused = ()  # the file is read again though it is unchanged: the disk may answer then
            return
        if before is not None and (passed := self._passed(name, before, file)):
            read.refuse(stamps, f"{path.name}: {passed}", name)
            read.refused = ()  # the file is read again though it is unchanged: the streams may have ended then
            return
        read.file, read.why = file, ""
        self._changed[name] = dataset
        read.stamps = (stamps[0], *self._stamps(path, read)[1:])
        if before is not None and (late := self._late(name, before, file)):
            _LOG.warning("%s: %s", path.name, late)
        num_bins = dataset.manifest.num_bins
        for number, entry in enumerate(file.skips):
            if entry.positions.ranges[0][0] >= num_bins:
                _LOG.warning(
                    "%s: skip[%d] skips nothing: positions %s are beyond the end of an epoch, which has %d bins",
                    *(path.name, number, entry.positions, num_bins),
                )
        if before is None or not before.is_same(file):
            _LOG.info("%s is in force: redactions: %d, skips: %d", path.name, len(file.redactions), len(file.skips))

    def _stamps(self, path: Path, read: _Read | None) -> Stamps:
        """Returns the stamps of a file, and of the files of ids that its content in force names."""
        ids_files = read.file.ids_files if read is not None and read.file is not None else ()
        paths = [path, *(path.with_name(name) for name in ids_files)]
        return tuple((each, stamp_of(each)) for each in paths)

    def _parsed(self, path: Path) -> TakedownFile:
        """Returns the content of a file; raises a PreparedDatasetError if it is wrong."""
        self._refuse_link(path, path.name)
        read_ids = read_ids_of(path, lambda ids_file: self._refuse_link(ids_file, ids_file.name))
        return TakedownFile.parse(takedown_text(path), path.name, read_ids)

    def _passed(self, name: str, before: TakedownFile, now: TakedownFile) -> str:
        """Returns a sentence about an open stream that has passed positions whose skip changes; empty for none."""
        for stream in self._streams:
            if stream.name != name:
                continue
            for epoch in _epochs_to_compare(before, now, stream.epoch):
                old, new = (file.skips_of(epoch, stream.seed) for file in (before, now))
                changed = new.minus(old).plus(old.minus(new)).within(stream.num_bins)
                passed = stream.num_bins if epoch < stream.epoch else stream.position
                if changed and changed.ranges[0][0] < passed:
                    return (
                        f"a stream has come to {stream}, and has passed the positions {changed} of epoch {epoch}: skip "
                        "positions ahead of all streams, give the [[skip]] the epoch that is meant, or stop the run "
                        "and resume it from a cursor before them"
                    )
        return ""

    def _late(self, name: str, before: TakedownFile, now: TakedownFile) -> str:
        """Returns a sentence about an open stream that has sent bins which a new redaction concerns; empty for none."""
        for redaction, digest in zip(now.redactions, now.chain, strict=True):
            if redaction.seed is None or digest in before.chain:
                continue
            for stream in self._streams:
                is_past = redaction.from_position < stream.run_position
                if stream.name == name and stream.seed == redaction.seed and is_past:
                    return (
                        f"from_position = {redaction.from_position}, and a stream has come to {stream}: its trainer "
                        "continues with the bins that it holds; stop the trainers, and resume them from their cursor"
                    )
        return ""


def _is_missing(path: Path) -> bool:
    """Whether the file is gone. A link that leads nowhere counts as present: somebody wanted a takedown."""
    try:
        path.lstat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def _says(file: TakedownFile) -> bool:
    """Whether a file takes anything away."""
    return bool(file.redactions or file.skips)


def put_together(dataset: Dataset, files: tuple[TakedownFile, ...]) -> Takedown:
    """Returns the takedown that files make together.

    Args:
        dataset: or mixture.
        files: the file of the dataset or mixture, then either one for each component of the mixture, in order, or none.

    Raises:
        TakedownError: a file names a component or key that does not exist; the message names the dataset's file.
    """
    own, *of_components = files
    tables = dataset.key_tables
    try:
        own = own.resolved(tables)
        if isinstance(dataset, MixtureDataset):
            components = zip(tables.items(), of_components or [_NO_FILE] * len(tables), strict=True)
            return Takedown.of_mixture(own, {name: file.resolved({"": keys}) for (name, keys), file in components})
        return Takedown.of_dataset(own)
    except TakedownError as error:
        raise TakedownError(f"{dataset.name}{TAKEDOWN_SUFFIX}: {error}") from None


@dataclass(frozen=True, slots=True, eq=False)
class UnknownNames:
    """Ids and keys that a dataset does not have.

    Example:
        >>> str(UnknownNames(np.arange(12), ["a"])), len(UnknownNames(np.arange(12), ["a"]))
        ('ids 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more and keys a', 13)
    """

    ids: NDArray[np.int64]
    """int64 [n], ascending."""
    keys: Sequence[str]

    def __len__(self) -> int:
        return len(self.ids) + len(self.keys)

    def __str__(self) -> str:
        keys = [shown_key(key)[:200] for key in self.keys[:_MOST_NAMED]]
        named = (("ids", self.ids, map(str, self.ids[:_MOST_NAMED].tolist())), ("keys", self.keys, keys))
        return " and ".join(
            f"{noun} {', '.join(first)}" + (f" and {len(some) - _MOST_NAMED:,} more" if len(some) > _MOST_NAMED else "")
            for noun, some, first in named
            if len(some)
        )


def unknown_names(dataset: Dataset, redaction: Redaction, *, most: int | None = None) -> UnknownNames:
    """Returns the names in a redaction that its dataset, or its component of a mixture, does not have.

    With `most`, only this many ids are looked up, the lowest.
    """
    resolved, keys = redaction.resolved(dataset.key_tables[redaction.component])
    if isinstance(dataset, MixtureDataset):
        dataset = next(each for each in dataset.datasets if each.name == redaction.component)
    ids = resolved.ids[:most]
    locations = dataset.epoch(0, 0).locate(ids)
    return UnknownNames(np.setdiff1d(ids, locations.ids[locations.lengths >= 0]), keys)


def _epochs_to_compare(before: TakedownFile, now: TakedownFile, reached: int) -> Iterator[int]:
    """Yields epochs up to `reached`, so that a skip that differs in any of them differs in one that is yielded.

    These are `reached`, the epochs that a file names, and at least one that no file names: all such epochs are alike.
    """
    named = {entry.epoch for file in (before, now) for entry in file.skips if entry.epoch is not None}
    yield from sorted({reached, *(epoch for epoch in named if epoch < reached), *range(min(reached, len(named) + 1))})
