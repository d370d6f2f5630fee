"""What an index of `PackedBins` means: an epoch and a position in it.

Owns that arithmetic, over epochs of several lengths; leaves where the first epoch begins to `cursor`.
"""

from bisect import bisect_right
from itertools import accumulate
from typing import NamedTuple

from packhorse.client.streams.cursor import Resume
from packhorse.client.streams.stream import StreamHeader


class BinAddress(NamedTuple):
    """What one index means."""

    epoch: int
    position: int
    header: StreamHeader

    @property
    def is_empty(self) -> bool:
        """Whether it is a bin that makes the epoch up to a multiple."""
        return self.position >= self.header.num_bins


class Indices:
    """The indices of some epochs that follow each other.

    Args:
        choice: number of the choice of epoch that they follow from.
        resume: where the first epoch begins.
        headers: of each epoch.
        multiple_of: each epoch's rows are made up to a multiple of it.
    """

    def __init__(self, choice: int, resume: Resume, headers: list[StreamHeader], multiple_of: int) -> None:
        self.choice = choice
        self.headers = headers
        self._first = resume
        rows = [header.num_bins for header in headers]
        rows[0] -= resume.start_position
        self.ends = list(accumulate(-(-count // multiple_of) * multiple_of for count in rows))

    def find(self, index: int) -> BinAddress:
        """Finds an index; an IndexError where there is none."""
        length = self.ends[-1]
        if not -length <= index < length:
            raise IndexError(f"index {index} is outside of {length} rows")
        index %= length
        number = bisect_right(self.ends, index)
        before = self.ends[number - 1] if number else -self._first.start_position
        return BinAddress(self._first.epoch + number, index - before, self.headers[number])
