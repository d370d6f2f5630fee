"""One takedown's file, read again when it changes.

Owns when a content takes effect, and which open streams prevent that. Leaves the takedown that the files of a mixture
and its components make together to `takedowns`, and the form of a file to `packhorse.dataset`.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from packhorse.dataset import (
    TAKEDOWN_SUFFIX,
    PreparedDatasetError,
    TakedownError,
    TakedownFile,
    read_ids_of,
    takedown_text,
)
from packhorse.server.datasets.protocols import Dataset
from packhorse.server.datasets.stream_progress import StreamProgress
from packhorse.server.datasets.taken_away.unknown_names import unknown_names
from packhorse.storage import Stamp, stamp_of

_LOG = logging.getLogger(__name__)

MOST_LOOKED_UP = 10_000
"""Most ids of a redaction that are looked up for the log: each takes about 70 microseconds of a processor."""

NO_FILE = TakedownFile()
"""The content of a file that does not exist."""


class _StampedPath(NamedTuple):
    """A file as one look found it."""

    path: Path
    stamp: Stamp | None
    """None if the file cannot be looked at."""


_Stamps = tuple[_StampedPath, ...]
"""The stamp of a takedown's file, then of each file of ids that it names."""


class Look(NamedTuple):
    """What one look at a file on the disk found, without reading it."""

    is_missing: bool
    stamps: _Stamps


class FollowedTakedown:
    """One takedown's file: the content in force, and what is wrong with a newer one.

    Args:
        name: name of the dataset or mixture beside which the file is.
        folder: the file's folder.
        refuse_link: a function that raises if a path leads out of the root.
        streams: the open streams, of any dataset.
        check: a function that raises a TakedownError if a content names what its dataset does not have.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        refuse_link: Callable[[Path, str], None],
        streams: Iterable[StreamProgress],
        check: Callable[[Dataset, TakedownFile], None],
    ) -> None:
        self.name = name
        self.path = folder / f"{name}{TAKEDOWN_SUFFIX}"
        self.lock = threading.RLock()
        """Held while the file is read, and while the takedown of the dataset is put together."""
        self.content: TakedownFile | None = None
        """The content in force; None if no content was ever right."""
        self.trouble = ""
        """What is wrong with the content now; empty if nothing is."""
        self._refuse_link = refuse_link
        self._streams = streams
        self._check = check
        self._is_new = True  # whether nobody has looked at the file yet
        self._stamps: _Stamps = ()  # of the content in force
        self._refused: _Stamps = ()  # of the content that was refused last: the same content is not read again
        self._logged: _Stamps = ()  # of the content about which the log has a line
        self._to_look_up_in: Dataset | None = None  # the dataset; None if the content's ids were looked up
        self._looked_up: set[str] = set()  # digests of redactions whose ids were looked up

    def look(self) -> Look:
        """Looks at the file on the disk."""
        return Look(_is_missing(self.path), self._stamps_now())

    def content_after(self, look: Look, dataset: Dataset) -> TakedownFile:
        """Returns the content in force after a look; reads the file if it has new stamps.

        Raises:
            TakedownError: none of its contents was ever right.
        """
        with self.lock:  # the file is read for the dataset itself and for each mixture that has it as a component
            if self._is_new and look.is_missing:
                # Without a file, nothing is taken away until a file appears that is right.
                self.content, self._stamps = NO_FILE, (_StampedPath(self.path, None),)
            self._is_new = False
            if look.stamps == self._stamps:
                self.trouble = ""
            if look.stamps not in (self._stamps, self._refused):
                self._read_again(look.stamps, dataset)
            if self.content is None:
                raise TakedownError(self.trouble)
            return self.content

    def note_no_answer(self, why: str) -> None:
        """Notes that the disk does not answer; the content in force stays, and the log says why once."""
        self._is_new = False
        self._refuse((_StampedPath(self.path, None),), why)

    def warn_of_unknown_ids(self) -> None:
        """Logs which ids in a content new since the last call do not exist in the dataset; may take a second."""
        dataset, self._to_look_up_in = self._to_look_up_in, None
        content = self.content
        if dataset is None or content is None:
            return
        for number, (redaction, digest) in enumerate(zip(content.redactions, content.chain, strict=True)):
            if digest in self._looked_up:
                continue
            self._looked_up.add(digest)
            names = unknown_names(dataset, redaction, most=MOST_LOOKED_UP)
            if len(names):
                _LOG.warning(
                    "%s: redact[%d] names %s, and there is no such sequence; `packhorse redact %s --check` looks "
                    "at every id",
                    self.path.name,
                    number,
                    names,
                    self.name,
                )

    def _read_again(self, stamps: _Stamps, dataset: Dataset) -> None:
        """Reads a changed file. Its content comes into force if it is right and no open stream has passed its skips."""
        before = self.content
        own, *_ = stamps
        if own.stamp is None:
            why = "is gone" if _is_missing(self.path) else "cannot be read, or is a link that leads nowhere"
            self._refuse(stamps, f"{self.path.name} {why}")
            return
        try:
            content = self._parsed()
            self._check(dataset, content)
        except PreparedDatasetError as error:
            self._refuse(stamps, str(error))
            if isinstance(error.__cause__, OSError):
                self._refused = ()  # the file is read again though it is unchanged: the disk may answer then
            return
        if before is not None and (why := self._why_skips_are_late(before, content)):
            self._refuse(stamps, f"{self.path.name}: {why}")
            self._refused = ()  # the file is read again though it is unchanged: the streams may have ended then
            return
        self.content, self.trouble, self._to_look_up_in = content, "", dataset
        _, *of_ids_files = self._stamps_now()  # of the files that the new content names; the file's own is from before
        self._stamps = (own, *of_ids_files)
        self._log_new_content(before, content, dataset.manifest.num_bins)

    def _refuse(self, stamps: _Stamps, why: str) -> None:
        """Leaves the content in force as it was, and logs once why. If there is none, the dataset is not served."""
        if self._logged != stamps:
            self._logged = stamps
            if self.content is None:
                _LOG.error("%s is not served: %s", self.name, why)
            else:
                _LOG.error("%s; what it said before stays in force", why)
        self._refused, self.trouble = stamps, why

    def _log_new_content(self, before: TakedownFile | None, content: TakedownFile, num_bins: int) -> None:
        """Logs that a content is in force, after warnings of what it does not take away."""
        if before is not None and (why := self._why_a_redaction_is_late(before, content)):
            _LOG.warning("%s: %s", self.path.name, why)
        for number, entry in enumerate(content.skips):
            if not entry.positions.within(num_bins):
                _LOG.warning(
                    "%s: skip[%d] skips nothing: positions %s are beyond the end of an epoch, which has %d bins",
                    self.path.name,
                    number,
                    entry.positions,
                    num_bins,
                )
        if before is None or not before.is_same(content):
            num_redactions, num_skips = len(content.redactions), len(content.skips)
            _LOG.info("%s is in force: redactions: %d, skips: %d", self.path.name, num_redactions, num_skips)

    def _stamps_now(self) -> _Stamps:
        """Returns the stamps of the file, and of the files of ids that its content in force names."""
        ids_files = () if self.content is None else self.content.ids_files
        paths = [self.path, *(self.path.with_name(name) for name in ids_files)]
        return tuple(_StampedPath(each, stamp_of(each)) for each in paths)

    def _parsed(self) -> TakedownFile:
        """Returns the content of the file; raises a PreparedDatasetError if it is wrong."""
        self._refuse_link(self.path, self.path.name)
        read_ids = read_ids_of(self.path, lambda ids_file: self._refuse_link(ids_file, ids_file.name))
        return TakedownFile.parse(takedown_text(self.path), self.path.name, read_ids)

    def _why_skips_are_late(self, before: TakedownFile, now: TakedownFile) -> str:
        """Returns a sentence about an open stream that has passed positions whose skip changes; empty for none."""
        for stream in self._streams:
            if stream.name != self.name:
                continue
            for epoch in _epochs_to_compare(before, now, stream.epoch):
                old, new = (file.skips_of(epoch, stream.seed) for file in (before, now))
                changed = new.minus(old).plus(old.minus(new)).within(stream.num_bins)  # skipped by one of the two only
                passed = stream.num_bins if epoch < stream.epoch else stream.position
                if changed.within(passed):
                    return (
                        f"a stream has come to {stream}, and has passed the positions {changed} of epoch {epoch}: skip "
                        "positions ahead of all streams, give the [[skip]] the epoch that is meant, or stop the run "
                        "and resume it from a cursor before them"
                    )
        return ""

    def _why_a_redaction_is_late(self, before: TakedownFile, now: TakedownFile) -> str:
        """Returns a sentence about an open stream that has sent bins which a new redaction concerns; empty for none."""
        for redaction, digest in zip(now.redactions, now.chain, strict=True):
            if redaction.seed is None or digest in before.chain:
                continue
            for stream in self._streams:
                is_past = redaction.from_position < stream.run_position
                if stream.name == self.name and stream.seed == redaction.seed and is_past:
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


def _epochs_to_compare(before: TakedownFile, now: TakedownFile, reached: int) -> Iterator[int]:
    """Yields epochs up to `reached`, so that a skip that differs in any of them differs in one that is yielded.

    These are `reached`, the epochs that a file names, and at least one that no file names, if there is one: all such
    epochs are alike. Of the first len(named) + 1 epochs one is not named.
    """
    named = {entry.epoch for file in (before, now) for entry in file.skips if entry.epoch is not None}
    yield from sorted({reached, *(epoch for epoch in named if epoch < reached), *range(min(reached, len(named) + 1))})
