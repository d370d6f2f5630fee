"""The templates that a stream's messages define, and the bins that are expanded from them.

Leaves the other arrays of a message to `blocks`, and the server's side to `server/methods/messages`.
"""

from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from packhorse.client.errors import DamagedAnswerError
from packhorse.wire import KEPT_TEMPLATES

_Integer = TypeVar("_Integer", np.int32, np.int64)

_NOT_DEFINED = -1
"""The size of a template whose number is not defined."""
NO_COMPONENT = -1
"""The component of an empty bin, and of every template without a mixture."""


class TemplateDefinitions(NamedTuple):
    """The templates that one message defines. Legend: M templates."""

    numbers: NDArray[np.uint32]
    """Number of each: uint32 [M], ascending."""
    sizes: NDArray[np.uint32]
    """How many lengths each has: uint32 [M]."""
    lengths: NDArray[np.int32]
    """Their lengths, one template after the other: int32."""
    components: NDArray[np.uint32]
    """Index of each one's component in the mixture: uint32 [M]; empty without a mixture."""


class _Table(NamedTuple):
    """Templates by their numbers; the lengths of template t are lengths[begins[t] :][: sizes[t]]."""

    begins: NDArray[np.int64]
    """Index in `lengths` of each one's first length."""
    sizes: NDArray[np.int64]
    """How many lengths each has, or _NOT_DEFINED."""
    components: NDArray[np.int32]
    """Index of each one's component in the mixture, or NO_COMPONENT."""
    lengths: NDArray[np.int32]
    """The lengths of all templates, end to end, perhaps with free space at the end."""


class ReceivedTemplates:
    """The templates that the messages of one stream, or a single answer, have defined so far.

    A message defines each template once and then gives only the template's number for each bin. Templates with numbers
    below KEPT_TEMPLATES are valid until the stream ends, others only in the message that defines them.
    """

    def __init__(self) -> None:
        self._kept = _Table(
            begins=np.zeros(0, dtype=np.int64),
            sizes=np.zeros(0, dtype=np.int64),
            components=np.zeros(0, dtype=np.int32),
            lengths=np.zeros(0, dtype=np.int32),
        )
        self._num_kept_lengths = 0  # the kept lengths that are in use; behind them is free space
        self._is_mixture = False  # whether a message has named components

    def expand(
        self, numbers: NDArray[np.uint32], num_sequences: int, defined: TemplateDefinitions
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32] | None]:
        """Adds a message's definitions, and expands the message's bins from their templates.

        Legend: N bins, S sequences.

        Args:
            numbers: number of every bin's template: uint32 [N].
            num_sequences: S, the number of ids in the message.
            defined: the templates that the message defines.

        Returns:
            The sequences' lengths, int32 [S]; the bins' exclusive ends among them, int64 [N]; and the bins' components,
            int32 [N], or None without a mixture.

        Raises:
            DamagedAnswerError: the arrays do not fit each other, or a template is not defined.
        """
        numbers, table = self._define(defined, numbers)
        if len(numbers) and int(numbers.max()) >= len(table.sizes):
            raise DamagedAnswerError("the bins are of templates that were not defined")
        indices = numbers.astype(np.intp)  # NumPy would convert indices of another type at each of three uses
        sizes = table.sizes.take(indices)
        bin_ends = np.cumsum(sizes)
        if (sizes == _NOT_DEFINED).any() or (int(bin_ends[-1]) if len(bin_ends) else 0) != num_sequences:
            raise DamagedAnswerError("the templates of the bins do not have as many lengths as there are ids")
        lengths = table.lengths.take(_ranges(table.begins.take(indices), sizes, bin_ends))
        return lengths, bin_ends, table.components.take(indices) if self._is_mixture else None

    def _define(self, defined: TemplateDefinitions, numbers: NDArray[np.uint32]) -> tuple[NDArray[np.uint32], _Table]:
        """Adds a message's definitions; returns the bins' numbers in a table of all templates, and the table.

        The definitions are in the order of their numbers, so those to keep come first.
        """
        ends = np.cumsum(defined.sizes, dtype=np.int64)
        if (
            len(defined.numbers) != len(defined.sizes)
            or (ends[-1] if len(ends) else 0) != len(defined.lengths)
            or (defined.numbers[1:] <= defined.numbers[:-1]).any()
            or len(defined.components) not in (0, len(defined.numbers))
        ):
            raise DamagedAnswerError("the definitions of templates do not fit each other")
        self._is_mixture = self._is_mixture or len(defined.components) > 0
        components = (
            defined.components.astype(np.int32)
            if len(defined.components)
            else np.full(len(defined.numbers), NO_COMPONENT, np.int32)
        )
        sizes = defined.sizes.astype(np.int64)
        begins = ends - sizes
        num_kept = int(np.searchsorted(defined.numbers, KEPT_TEMPLATES))  # of this message's definitions
        end_kept = int(ends[num_kept - 1]) if num_kept else 0  # of their lengths
        if num_kept:
            self._keep(
                defined.numbers[:num_kept],
                _Table(begins[:num_kept], sizes[:num_kept], components[:num_kept], defined.lengths[:end_kept]),
            )
        if num_kept == len(defined.numbers):
            return numbers, self._kept
        others = _Table(
            begins[num_kept:] - end_kept, sizes[num_kept:], components[num_kept:], defined.lengths[end_kept:]
        )
        return self._table_with(numbers, others, int(defined.numbers[-1]))

    def _table_with(
        self, numbers: NDArray[np.uint32], others: _Table, last_number: int
    ) -> tuple[NDArray[np.uint32], _Table]:
        """Appends templates of this message only to a copy of the kept ones, and renumbers the bins to match.

        Args:
            numbers: number of every bin's template.
            others: the templates of this message only, in the order of their numbers.
            last_number: the highest of these numbers.
        """
        kept = self._kept
        num_kept = len(kept.sizes)
        is_other = numbers >= KEPT_TEMPLATES
        # The others' numbers must be KEPT_TEMPLATES, KEPT_TEMPLATES + 1, …: they ascend, so the last one shows a gap.
        if (numbers[~is_other] >= num_kept).any() or last_number - KEPT_TEMPLATES >= len(others.sizes):
            raise DamagedAnswerError("the bins are of templates that were not defined")
        numbers = np.where(is_other, numbers - np.uint32(KEPT_TEMPLATES) + np.uint32(num_kept), numbers)
        table = _Table(
            begins=np.concatenate((kept.begins, len(kept.lengths) + others.begins)),
            sizes=np.concatenate((kept.sizes, others.sizes)),
            components=np.concatenate((kept.components, others.components)),
            lengths=np.concatenate((kept.lengths, others.lengths)),
        )
        return numbers, table

    def _keep(self, numbers: NDArray[np.uint32], added: _Table) -> None:
        """Remembers templates below KEPT_TEMPLATES, ascending by their numbers, until the stream ends."""
        begins, sizes, components, lengths = self._kept
        if (missing := int(numbers[-1]) + 1 - len(sizes)) > 0:
            begins = _grown(begins, missing, 0)
            sizes = _grown(sizes, missing, _NOT_DEFINED)
            components = _grown(components, missing, NO_COMPONENT)
        end = self._num_kept_lengths + len(added.lengths)
        if end > len(lengths):  # to twice what is needed, so that a stream grows it a few times only
            lengths = _grown(lengths, 2 * end - len(lengths), 0)
        begins[numbers] = self._num_kept_lengths + added.begins
        sizes[numbers] = added.sizes
        components[numbers] = added.components
        lengths[self._num_kept_lengths : end] = added.lengths
        self._kept, self._num_kept_lengths = _Table(begins, sizes, components, lengths), end


def _grown(array: NDArray[_Integer], added: int, value: int) -> NDArray[_Integer]:
    """Returns an array with `added` more values at its end. NumPy's `pad` takes ten times as long for a few values."""
    return np.concatenate((array, np.full(added, value, dtype=array.dtype)))


def _ranges(begins: NDArray[np.int64], sizes: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns all numbers of the ranges [begin, begin + size), end to end: int64 [sum of sizes].

    They are computed as running sums: the step to the next number is 1 within a range, and a jump where a range begins.
    The ranges [5, 8) and [2, 4) are 5, 6, 7, 2, 3: the running sums of 5, 1, 1, −5, 1.

    Args:
        begins: first number of every range.
        sizes: numbers in every range.
        ends: running sums of the sizes.
    """
    if not sizes.all():  # an empty range begins where the next one does, and only one jump fits there
        begins, sizes, ends = begins[sizes > 0], sizes[sizes > 0], ends[sizes > 0]
    numbers = np.ones(int(ends[-1]) if len(ends) else 0, dtype=np.int64)
    numbers[ends[:-1]] = begins[1:] - begins[:-1] - sizes[:-1] + 1
    numbers[:1] = begins[:1]
    return np.cumsum(numbers, out=numbers)
