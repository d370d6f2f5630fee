"""What is taken away by file from what is served: every `NAME.takedown.toml` beside a dataset or a mixture.

Owns reading the files, again when they change, and refusing what a running stream has gone past. Leaves what a file
says to `packhorse.dataset`, and what follows for bins to `backend`.
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
from packhorse.server.base.stamps import FileStamp, stamp_of
from packhorse.server.datasets.catalog import not_served
from packhorse.server.datasets.served import Reader, Served

_LOG = logging.getLogger(__name__)

FRESH_SECONDS = 0.25
"""A stream that goes on has files looked at again when it is longer ago: it asks at every block, and a mixture may have
a file for each of a thousand components."""

MOST_LOOKED_UP = 10_000
"""Ids of a redaction that the log may tell of: each takes some 70 microseconds of a processor to look up."""

NOTHING = Takedown()
"""Where no file takes anything away."""

_MOST_NAMED = 10
_NO_FILE = TakedownFile()

Stamps = tuple[tuple[Path, FileStamp | None], ...]


@dataclass
class _Read:
    """A file as it was read last."""

    file: TakedownFile | None = None
    """What counts; None where it was never right."""
    stamps: Stamps = ()
    """Of the file and the files of ids that it names, when it was taken."""
    refused: Stamps = ()
    """Of them when they were refused; they are not read again before they change."""
    told: Stamps = ()
    """Of them when the log was told why."""
    why: str = ""
    """What is wrong with them now; empty where nothing is."""

    def refuse(self, stamps: Stamps, why: str, name: str) -> None:
        """Leaves what counts as it was, and tells the log why, once.

        Args:
            stamps: of the files.
            why: they cannot be taken.
            name: of the dataset or mixture, which is not served where nothing counted before.
        """
        if self.told != stamps:
            self.told = stamps
            if self.file is None:
                _LOG.error("%s is not served: %s", name, why)
            else:
                _LOG.error("%s; what it said before stays in force", why)
        self.refused, self.why = stamps, why


@dataclass
class _InForce:
    """What counted when it was last put together."""

    files: tuple[TakedownFile, ...] = ()
    takedown: Takedown = NOTHING
    looked_at: float = float("-inf")


class Takedowns:
    """The takedowns below one root. Safe to be used by many threads.

    A file is read again when it changed. Where it is wrong then, or leaves out what an open stream has gone past, what
    was read before stays in force, and a line in the log says why. A dataset whose file was never right is not served:
    what it should have taken away would be. A file that is gone stays in force too, until the server is started again.

    Args:
        root: of the catalog; where that is one dataset, its file lies beside it.
        refuse_link: raises where a path leads out of the root.
    """

    def __init__(self, root: Path, refuse_link: Callable[[Path, str], None]) -> None:
        is_dataset = (root / MANIFEST).exists()
        self._folder = root.parent if is_dataset else root
        self._refuse_link = (lambda path, name: None) if is_dataset else refuse_link
        self._lock = threading.Lock()
        self._read: dict[str, _Read] = {}
        self._in_force: weakref.WeakKeyDictionary[Served, _InForce] = weakref.WeakKeyDictionary()
        self._readers: weakref.WeakSet[Reader] = weakref.WeakSet()
        self._changed: dict[str, Served] = {}  # whose file was read since ids were looked up
        self._looked_up: set[tuple[str, str]] = set()  # (name, digest) of redactions

    def of(self, served: Served, *, goes_on: bool = False) -> Takedown:
        """Returns what is taken away from a dataset or a mixture now.

        Args:
            served: the dataset or mixture.
            goes_on: whether it may be a quarter of a second old.

        Raises:
            ServiceError: its file was never right.
        """
        with self._lock:
            kept = self._in_force.get(served)
            if kept is None:
                kept = self._in_force[served] = _InForce()
            now = time.monotonic()
            if goes_on and now - kept.looked_at < FRESH_SECONDS:
                return kept.takedown
            datasets = served.datasets if isinstance(served, MixtureDataset) else ()
            try:
                files = tuple(self._file(each.name, each) for each in (served, *datasets))
                if files != kept.files and not (kept.takedown is NOTHING and not any(map(_says, files))):
                    kept.takedown = put_together(served, files)
            except PreparedDatasetError as error:
                raise not_served(served.name, str(error)) from None
            kept.files, kept.looked_at = files, now
            return kept.takedown

    def troubles(self) -> dict[str, str]:
        """Returns what is wrong with files as they were looked at last, by the name of what they are of."""
        with self._lock:
            return {name: read.why for name, read in self._read.items() if read.why}

    def follow(self, reader: Reader) -> None:
        """Knows of a stream as long as it is held by whoever opened it."""
        with self._lock:
            self._readers.add(reader)

    def furthest(self, name: str) -> Reader | None:
        """Returns which open stream of a dataset or mixture has come furthest in its run."""
        with self._lock:
            ours = [reader for reader in self._readers if reader.name == name]
        return max(ours, key=lambda reader: reader.run_position, default=None)

    def tell_unknown_ids(self) -> None:
        """Warns of ids in files that changed since the last call which their dataset has not; it may take a second."""
        with self._lock:
            changed = {name: (served, self._read[name].file) for name, served in self._changed.items()}
            self._changed.clear()
        for name, (served, file) in changed.items():
            for number, (redaction, digest) in enumerate(zip(file.redactions, file.chain, strict=True) if file else ()):
                if (name, digest) in self._looked_up:
                    continue
                self._looked_up.add((name, digest))
                names = unknown_names(served, redaction, most=MOST_LOOKED_UP)
                if len(names):
                    _LOG.warning(
                        "%s%s: redact[%d] names %s, and there is no such sequence; `packhorse redact %s --check` looks "
                        "at every id",
                        *(name, TAKEDOWN_SUFFIX, number, names, name),
                    )

    def _file(self, name: str, served: Served) -> TakedownFile:
        """Returns what a file says; that of before where it is wrong.

        Raises:
            TakedownError: it is wrong, and nothing was before.
        """
        path = self._folder / f"{name}{TAKEDOWN_SUFFIX}"
        if name not in self._read:
            # Where there is none, nothing is in force until a right file says otherwise.
            self._read[name] = _Read(_NO_FILE, ((path, None),)) if _is_missing(path) else _Read()
        read = self._read[name]
        stamps = self._stamps(path, read)
        if stamps == read.stamps:
            read.why = ""
        if stamps not in (read.stamps, read.refused):
            self._reread(name, path, stamps, read, served)
        if read.file is None:
            raise TakedownError(read.why)
        return read.file

    def _reread(self, name: str, path: Path, stamps: Stamps, read: _Read, served: Served) -> None:
        before = read.file
        if stamps[0][1] is None:
            why = "is gone" if _is_missing(path) else "cannot be read, or is a link that leads nowhere"
            read.refuse(stamps, f"{path.name} {why}", name)
            return
        try:
            file = self._parsed(path)
            put_together(served, (file, *_none(served)))
        except PreparedDatasetError as error:
            read.refuse(stamps, str(error), name)
            return
        if before is not None and (passed := self._passed(name, before, file)):
            read.refuse(stamps, f"{path.name}: {passed}", name)
            read.refused = ()  # it is asked again: the streams may end
            return
        read.file, read.why = file, ""
        self._changed[name] = served
        read.stamps = (stamps[0], *self._stamps(path, read)[1:])
        if before is not None and (late := self._late(name, before, file)):
            _LOG.warning("%s: %s", path.name, late)
        if before is None or not before.is_same(file):
            _LOG.info("%s is in force: redactions: %d, skips: %d", path.name, len(file.redactions), len(file.skips))

    def _stamps(self, path: Path, read: _Read) -> Stamps:
        ids_files = read.file.ids_files if read.file is not None else ()
        paths = [path, *(path.with_name(name) for name in ids_files)]
        return tuple((each, stamp_of(each)) for each in paths)

    def _parsed(self, path: Path) -> TakedownFile:
        self._refuse_link(path, path.name)
        read_ids = read_ids_of(path, lambda ids_file: self._refuse_link(ids_file, ids_file.name))
        return TakedownFile.parse(takedown_text(path), path.name, read_ids)

    def _passed(self, name: str, before: TakedownFile, now: TakedownFile) -> str:
        """Says which open stream has gone past positions that are newly left out, or no longer; empty for none."""
        for reader in self._readers:
            if reader.name != name:
                continue
            for epoch in _epochs_to_compare(before, now, reader.epoch):
                old, new = (file.skips_of(epoch, reader.seed) for file in (before, now))
                changed = new.minus(old).plus(old.minus(new)).within(reader.num_bins)
                passed = reader.num_bins if epoch < reader.epoch else reader.position
                if changed and changed.ranges[0][0] < passed:
                    return (
                        f"a stream has come to {reader}, and the positions {changed} of epoch {epoch} lie behind it: "
                        "leave out positions ahead of all streams, give the [[skip]] the epoch that is meant, or stop "
                        "the run and resume it from a cursor before them"
                    )
        return ""

    def _late(self, name: str, before: TakedownFile, now: TakedownFile) -> str:
        """Says which run has been sent bins from where on a new redaction is said to hold for it; empty for none."""
        for redaction, digest in zip(now.redactions, now.chain, strict=True):
            if redaction.seed is None or digest in before.chain:
                continue
            for reader in self._readers:
                is_past = redaction.from_position < reader.run_position
                if reader.name == name and reader.seed == redaction.seed and is_past:
                    return (
                        f"from_position = {redaction.from_position}, and a stream has come to {reader}: its trainer "
                        "goes on with the bins that it holds; stop the trainers, and resume them from their cursor"
                    )
        return ""


def _is_missing(path: Path) -> bool:
    """Whether nothing stands there, not even a link that leads nowhere: what that should take away would be served."""
    try:
        path.lstat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def _says(file: TakedownFile) -> bool:
    return bool(file.redactions or file.skips)


def _none(served: Served) -> tuple[TakedownFile, ...]:
    return (_NO_FILE,) * len(served.datasets) if isinstance(served, MixtureDataset) else ()


def put_together(served: Served, files: tuple[TakedownFile, ...]) -> Takedown:
    """Returns what files take away together.

    Args:
        served: a dataset or a mixture.
        files: its own, then those of a mixture's components, in order.

    Raises:
        TakedownError: its own file names what it has not; names the file.
    """
    own, *of_components = files
    tables = served.key_tables
    try:
        own = own.resolved(tables)
        if isinstance(served, MixtureDataset):
            components = zip(tables.items(), of_components, strict=True)
            return Takedown.of_mixture(own, {name: file.resolved({"": keys}) for (name, keys), file in components})
        return Takedown.of_dataset(own)
    except TakedownError as error:
        raise TakedownError(f"{served.name}{TAKEDOWN_SUFFIX}: {error}") from None


@dataclass(frozen=True, slots=True, eq=False)
class UnknownNames:
    """Ids and keys that a dataset has not.

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


def unknown_names(served: Served, redaction: Redaction, *, most: int | None = None) -> UnknownNames:
    """Returns what a redaction names and its dataset, or its component of a mixture, has not.

    Args:
        served: what it is of.
        redaction: as it stands in a file that `put_together` takes.
        most: ids that are looked up, the lowest; None for all.
    """
    dataset = served
    if isinstance(served, MixtureDataset):
        dataset = next(each for each in served.datasets if each.name == redaction.component)
    resolved, keys = redaction.resolved(served.key_tables[redaction.component])
    ids = resolved.ids[:most]
    found = dataset.epoch(0, 0).locate(ids)
    return UnknownNames(np.setdiff1d(ids, found.ids[found.lengths >= 0]), keys)


def _epochs_to_compare(before: TakedownFile, now: TakedownFile, reached: int) -> Iterator[int]:
    """Yields the epochs up to one that may differ: those that a file names, that one, and one that none names."""
    named = {entry.epoch for file in (before, now) for entry in file.skips if entry.epoch is not None}
    yield from sorted({reached, *(epoch for epoch in named if epoch < reached), *range(min(reached, len(named) + 1))})
