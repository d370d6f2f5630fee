"""What an index of `PackedBins` means: an epoch, and a position in it.

Owns this translation. Leaves reading the bins at a position to `bins/reader`.
"""

from bisect import bisect_right
from itertools import accumulate
from typing import NamedTuple

from packhorse.client.streams.cursor import Resume
from packhorse.types import StreamHeader


class BinAddress(NamedTuple):
    """The bin that an index means."""

    epoch: int
    """The epoch's number, 0-based."""
    position: int
    """The bin's position in the epoch."""
    header: StreamHeader
    """The facts of the epoch."""

    @property
    def is_empty(self) -> bool:
        """Whether this is an empty bin, which follows the epoch's last bin to make the number of rows a multiple."""
        return self.position >= self.header.num_bins


class Indices:
    """The indices of consecutive epochs: those of the first epoch, then those of the second, and so on.

    Args:
        choice: `Progress.choice` at the time; if it has changed since, the user has chosen another epoch or cursor.
        resume: the first epoch, and the position where it begins.
        headers: the facts of each epoch.
        multiple_of: empty bins fill each epoch up to a multiple of this number of rows.
    """

    def __init__(self, choice: int, resume: Resume, headers: list[StreamHeader], multiple_of: int) -> None:
        self.choice = choice
        self.headers = headers
        self._first = resume
        rows = [header.num_bins for header in headers]
        rows[0] -= resume.position
        self.ends = list(accumulate(-(-count // multiple_of) * multiple_of for count in rows))  # each rounded up
        """For each epoch, the index after its last row."""

    def from_start(self, index: int) -> int:
        """Returns a row's index ≥ 0; negative ones count from the end. Raises an IndexError if there is no such row."""
        length = self.ends[-1]
        if not -length <= index < length:
            raise IndexError(f"index {index} is outside of {length} rows")
        return index % length

    def find(self, index: int) -> BinAddress:
        """Returns what an index means; see `from_start`."""
        index = self.from_start(index)
        number = bisect_right(self.ends, index)  # 0 for the first of these epochs
        position = index - self.ends[number - 1] if number else index + self._first.position
        return BinAddress(self._first.epoch + number, position, self.headers[number])
