"""What a stream has said of its templates, and the lengths of bins that are named by them.

Owns the table; leaves the rest of a message to `blocks`.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from packhorse.client.errors import DamagedAnswerError
from packhorse.wire import KEPT_TEMPLATES

_Integer = TypeVar("_Integer", np.int32, np.int64)


class Templates:
    """The templates that the messages of one stream, or a single answer, have defined so far."""

    def __init__(self) -> None:
        self._begins = np.zeros(0, dtype=np.int64)  # in _lengths, by number
        self._sizes = np.zeros(0, dtype=np.int64)  # -1 where none is defined
        self._datasets = np.zeros(0, dtype=np.int32)  # by number, -1 where none is said
        self._is_mixture = False
        self._lengths = np.zeros(0, dtype=np.int32)  # of all that are defined, and room for more
        self._num_lengths = 0

    def expanded(
        self,
        numbers: NDArray[np.uint32],
        num_sequences: int,
        *,
        defined: NDArray[np.uint32],
        defined_sizes: NDArray[np.uint32],
        defined_lengths: NDArray[np.int32],
        defined_components: NDArray[np.uint32],
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32] | None]:
        """Takes in a message's definitions, and returns the lengths of its sequences, and its bins' ends and datasets.

        Args:
            numbers: every bin's template: uint32 [N].
            num_sequences: of all bins, S.
            defined: templates that the message defines: uint32 [M], ascending.
            defined_sizes: how many lengths each has: uint32 [M].
            defined_lengths: theirs, one template after the other: int32.
            defined_components: which of a mixture's components each is of: uint32 [M]; [0] without a mixture.

        Returns:
            int32 [S], int64 [N], and int32 [N] or None without a mixture.

        Raises:
            DamagedAnswerError: the arrays do not fit each other, or a template is not defined.
        """
        ends = np.cumsum(defined_sizes, dtype=np.int64)
        if (
            len(defined) != len(defined_sizes)
            or (ends[-1] if len(ends) else 0) != len(defined_lengths)
            or (defined[1:] <= defined[:-1]).any()
            or len(defined_components) not in (0, len(defined))
        ):
            raise DamagedAnswerError("the definitions of templates do not fit each other")
        self._is_mixture = self._is_mixture or len(defined_components) > 0
        of_defined = (
            defined_components.astype(np.int32) if len(defined_components) else np.full(len(defined), -1, np.int32)
        )
        num_kept = int(np.searchsorted(defined, KEPT_TEMPLATES))
        end_kept = int(ends[num_kept - 1]) if num_kept else 0
        if num_kept:
            sizes_kept = defined_sizes[:num_kept].astype(np.int64)
            self._keep(
                defined[:num_kept],
                ends[:num_kept] - sizes_kept,
                sizes_kept,
                defined_lengths[:end_kept],
                of_defined[:num_kept],
            )
        begins, sizes, lengths, datasets = self._begins, self._sizes, self._lengths, self._datasets
        if num_kept < len(defined):  # the others are put behind, for this message
            is_other = numbers >= KEPT_TEMPLATES
            if (numbers[~is_other] >= len(sizes)).any() or int(defined[-1]) - KEPT_TEMPLATES >= len(defined) - num_kept:
                raise DamagedAnswerError("the bins are of templates that were not defined")
            numbers = np.where(is_other, numbers - np.uint32(KEPT_TEMPLATES) + np.uint32(len(sizes)), numbers)
            others = defined_sizes[num_kept:].astype(np.int64)
            begins = np.concatenate((begins, len(lengths) + ends[num_kept:] - others - end_kept))
            sizes = np.concatenate((sizes, others))
            lengths = np.concatenate((lengths, defined_lengths[end_kept:]))
            datasets = np.concatenate((datasets, of_defined[num_kept:]))
        if len(numbers) and int(numbers.max()) >= len(sizes):
            raise DamagedAnswerError("the bins are of templates that were not defined")
        which = numbers.astype(np.intp)  # once: an index of another type is converted each time
        sizes = sizes.take(which)
        bin_ends = np.cumsum(sizes)
        if (sizes < 0).any() or (int(bin_ends[-1]) if len(bin_ends) else 0) != num_sequences:
            raise DamagedAnswerError("the templates of the bins do not have as many lengths as there are ids")
        own_lengths = lengths.take(_members(begins.take(which), sizes, bin_ends))
        return own_lengths, bin_ends, datasets.take(which) if self._is_mixture else None

    def _keep(
        self,
        numbers: NDArray[np.uint32],
        begins: NDArray[np.int64],
        sizes: NDArray[np.int64],
        lengths: NDArray[np.int32],
        datasets: NDArray[np.int32],
    ) -> None:
        """Remembers templates below KEPT_TEMPLATES until the stream ends."""
        if (missing := int(numbers[-1]) + 1 - len(self._sizes)) > 0:
            self._begins = _grown(self._begins, missing, 0)
            self._sizes = _grown(self._sizes, missing, -1)
            self._datasets = _grown(self._datasets, missing, -1)
        end = self._num_lengths + len(lengths)
        if end > len(self._lengths):
            self._lengths = _grown(self._lengths, 2 * end - len(self._lengths), 0)
        self._begins[numbers] = self._num_lengths + begins
        self._sizes[numbers] = sizes
        self._datasets[numbers] = datasets
        self._lengths[self._num_lengths : end] = lengths
        self._num_lengths = end


def _grown(array: NDArray[_Integer], added: int, value: int) -> NDArray[_Integer]:
    """Returns an array with so many values behind it. NumPy's `pad` takes ten times as long where there are few."""
    return np.concatenate((array, np.full(added, value, dtype=array.dtype)))


def _members(begins: NDArray[np.int64], sizes: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the ranges [begin, begin + size) end to end: int64 [sum of sizes].

    As running sums: within a range the next number is one more, and only where a range begins it jumps.
    """
    if not sizes.all():
        begins, sizes, ends = begins[sizes > 0], sizes[sizes > 0], ends[sizes > 0]
    members = np.ones(int(ends[-1]) if len(ends) else 0, dtype=np.int64)
    members[ends[:-1]] = begins[1:] - begins[:-1] - sizes[:-1] + 1
    members[:1] = begins[:1]
    return np.cumsum(members, out=members)
