"""The sequences of a `PackStream`: those of a call, in groups, and those that are in no bin yet.

Owns what is known of each, and the groups that stay together: which are formed, and which are refused as too long. A
sequence's own number is 0, 1, 2, … in the order in which the trainer gave them. Leaves sending them to `pack_stream`,
and comparing answers with them to `_pack_answers`.
"""

from collections.abc import Mapping
from typing import NamedTuple

from packhorse.client.error_texts import invalid
from packhorse.topology import RoomRule
from packhorse.v1 import packing_pb2 as pb


class StreamSequence(NamedTuple):
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


class HeldSequences(dict[int, StreamSequence]):
    """Own number → sequence that is in no bin yet, ascending; with the groups of several sequences among them.

    Example:
        >>> held = HeldSequences()
        >>> held.add_all({0: StreamSequence(70, 5, group=0), 1: StreamSequence(71, 3, group=0)})
        >>> held.add_all({2: StreamSequence(72, 4, group=2)})
        >>> held.is_torn([2, 0]), held.is_torn([2, 0, 1])
        (True, False)
        >>> held.remove(0), held.first_of_group(1)
        (70, 1)
    """

    def __init__(self) -> None:
        super().__init__()
        # A group's first own number → own numbers of its sequences that are held; only of groups of several.
        self._groups: dict[int, list[int]] = {}

    def add_all(self, sequences: Mapping[int, StreamSequence]) -> None:
        """Adds sequences by their own numbers, which follow those that were added before."""
        self.update(sequences)
        for number, sequence in sequences.items():
            if sequence.group != number:  # not the first of its group, whose own number is the group's
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

    def oldest_version_of_group(self, sequence: StreamSequence) -> int:
        """Returns the least version of the sequences of a sequence's group that are still held."""
        numbers = self._groups.get(sequence.group, [])
        return min((self[number].version for number in numbers), default=sequence.version)

    def is_torn(self, numbers: list[int]) -> bool:
        """Whether a bin, given by its own numbers, does not hold each of its groups whole and in order."""
        begin = 0
        while begin < len(numbers):
            whole = self._groups.get(self[numbers[begin]].group, numbers[begin : begin + 1])
            if numbers[begin : begin + len(whole)] != whole:
                return True
            begin += len(whole)
        return False


class NewSequences(NamedTuple):
    """The sequences of one call of `send`, as the trainer gave them: equally long lists."""

    ids: list[int]
    """Each one's id."""
    lengths: list[int]
    """Each one's length in tokens."""
    amounts: list[tuple[int, ...]]
    """What each takes of the stream's resources."""
    versions: list[int]
    """The version of the policy that wrote each."""


def one_by_one(new: NewSequences, first_number: int) -> list[StreamSequence]:
    """Returns the sequences of a call, each in a group of its own; their own numbers begin at `first_number`."""
    properties = zip(new.ids, new.lengths, new.amounts, new.versions, strict=True)
    return [
        StreamSequence(sequence_id, length, group=number, amounts=amounts, version=version)
        for number, (sequence_id, length, amounts, version) in enumerate(properties, first_number)
    ]


def in_groups(
    new: NewSequences, groups: list[int], rule: RoomRule, options: pb.PackStreamOptions, first_number: int
) -> list[StreamSequence]:
    """Returns the sequences of a call, group by group, in the order in which the groups' first sequences came.

    Args:
        new: the sequences as they were given.
        groups: the number of each one's group.
        rule: computes a sequence's room from its length.
        options: the stream's options.
        first_number: the own number of the first sequence that is returned.

    Raises:
        InvalidRequestError: a group is too long for a bin, or has several versions that may not share one.
    """
    if len(groups) != len(new.ids):
        raise invalid("groups", f"holds {len(groups)} numbers for {len(new.ids)} ids")
    indices_of_group: dict[int, list[int]] = {}
    for index, group in enumerate(groups):
        indices_of_group.setdefault(group, []).append(index)
    sequences: list[StreamSequence] = []
    for group, indices in indices_of_group.items():
        room = sum(int(rule.room(new.lengths[index])) for index in indices)
        if room > rule.max_seq_len:
            raise invalid(
                "groups",
                f"group {group} takes {room} tokens together, over max_seq_len {rule.max_seq_len}: raise it, or "
                "leave out sequences of the group",
            )
        if len(indices) > 1 and options.max_sequences_per_bin:
            raise invalid("groups", "max_sequences_per_bin does not go with groups: leave it None")
        if options.separate_versions and len({new.versions[index] for index in indices}) > 1:
            raise invalid("versions", f"says several of group {group}, which shares a bin of one version")
        own_number = first_number + len(sequences)  # of the group's first sequence
        sequences.extend(
            StreamSequence(
                new.ids[index],
                new.lengths[index],
                group=own_number,
                amounts=new.amounts[index],
                version=new.versions[index],
            )
            for index in indices
        )
    return sequences
