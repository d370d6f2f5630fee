"""The sequences of a `PackStream` that were sent, or will be, and are in no bin yet.

Owns what is known of each, by its own number, and the groups that stay together. Leaves sending them to `pack_stream`,
and comparing the service's answers with them to `_pack_answers`.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Sequence(NamedTuple):
    """A sequence that was or will be sent, and is in no bin yet."""

    id: int
    """The id that the trainer gave."""
    length: int
    """Length in tokens."""
    group: int
    """Own number of the first sequence of the group; of a single sequence, its own number."""
    amounts: tuple[int, ...] = ()
    """Amount of each of the stream's resources that the sequence takes."""
    version: int = 0
    """Version of the policy that wrote the sequence."""


class HeldSequences(dict[int, Sequence]):
    """Own number → sequence that is in no bin yet, ascending; with the groups of several sequences among them.

    Example:
        >>> held = HeldSequences()
        >>> held.add_all({0: Sequence(70, 5, group=0), 1: Sequence(71, 3, group=0), 2: Sequence(72, 4, group=2)})
        >>> held.is_torn([2, 0]), held.is_torn([2, 0, 1])
        (True, False)
        >>> held.remove(0), held.first_of_group(1)
        (70, 1)
    """

    def __init__(self) -> None:
        super().__init__()
        # A group's first own number → own numbers of its sequences that are held; only of groups of several.
        self._groups: dict[int, list[int]] = {}

    def add_all(self, sequences: Mapping[int, Sequence]) -> None:
        """Adds sequences by their own numbers, which follow those that were added before."""
        self.update(sequences)
        for number, sequence in sequences.items():
            if sequence.group != number:
                self._groups.setdefault(sequence.group, [sequence.group]).append(number)

    def remove(self, number: int) -> int:
        """Removes a sequence that is in a bin, evicted or refused, and returns its id."""
        sequence = self.pop(number)
        if sequence.group in self._groups:
            self._groups[sequence.group].remove(number)
            if not self._groups[sequence.group]:
                del self._groups[sequence.group]
        return sequence.id

    def first_of_group(self, number: int) -> int:
        """Returns the own number of the first sequence of a sequence's group that is still held."""
        return self._groups.get(self[number].group, [number])[0]

    def oldest_version_of_group(self, sequence: Sequence) -> int:
        """Returns the least version of the sequences of a sequence's group that are still held."""
        numbers = self._groups.get(sequence.group, [])
        return min((self[number].version for number in numbers), default=sequence.version)

    def is_torn(self, numbers: list[int]) -> bool:
        """Whether a bin, given by its own numbers, does not hold each of its groups whole and in order."""
        at = 0
        while at < len(numbers):
            whole = self._groups.get(self[numbers[at]].group, numbers[at : at + 1])
            if numbers[at : at + len(whole)] != whole:
                return True
            at += len(whole)
        return False
