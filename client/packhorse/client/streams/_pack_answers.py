"""Checks of the answers of a stream that packs: only what was sent comes back, once, and within the stream's limits.

A service too old for one of the limits ignores it, so its bins show that. A sequence's own number is the one that the
stream gave it; an evicted sequence, or one of its group, is too old; it comes back in no bin. Leaves what is known of
each sequence to `_held_sequences`, and what happens to an answer to `pack_stream`.
"""

from collections.abc import Collection, Set
from dataclasses import dataclass

from packhorse.client.error_texts import too_old
from packhorse.client.errors import DamagedAnswerError
from packhorse.client.streams._held_sequences import HeldSequences
from packhorse.client.streams.blocks import BinBlock
from packhorse.v1 import packing_pb2 as pb


@dataclass(frozen=True, slots=True)
class PackAnswerChecks:
    """What every answer of one stream must fulfil."""

    target: str
    """The target of the transport, for messages."""
    options: pb.PackStreamOptions
    """The stream's options."""
    held: HeldSequences
    """The stream's sequences that are in no bin yet; the stream changes them between the checks."""

    def check_sequences(
        self, block: BinBlock, evicted: Collection[int], num_held: int, *, unsent: Set[int], oldest_version: int
    ) -> None:
        """Raises DamagedAnswerError unless an answer's bins and evicted sequences agree with what was sent.

        Args:
            block: the bins; the ids are own numbers.
            evicted: own numbers of the evicted sequences.
            num_held: the number of sequences that the service still holds, by its own count.
            unsent: own numbers of the sequences that are not sent over the open call yet.
            oldest_version: the oldest version of a sequence that a bin may hold.
        """
        packed = block.ids.tolist()
        returned = {*packed, *evicted}
        sent = self.held.keys() - unsent
        if (
            len(returned) != len(packed) + len(evicted)  # a sequence came twice
            or not returned <= sent  # the conditions below look each one up in `held`
            or num_held != len(sent) - len(returned)
            or any(
                self.held[number].length != length
                for number, length in zip(packed, block.lengths.tolist(), strict=True)
            )
            or not all(self._may_be_evicted(number, oldest_version) for number in evicted)
            or len(block) % max(self.options.num_bins_multiple_of, 1)  # 0: any number of bins
        ):
            raise DamagedAnswerError(
                f"{self.target} returned other sequences, lengths or numbers of them than it was sent"
            )

    def check_bins(self, block: BinBlock, *, oldest_version: int) -> None:
        """Raises an error for bins that tear groups apart, or that exceed resources or versions.

        Torn groups are a DamagedAnswerError. A server that exceeds resources or versions is too old to know them:
        VersionMismatchError.

        Args:
            block: bins that `check_sequences` has passed; the ids are own numbers.
            oldest_version: the oldest version of a sequence that a bin may hold.
        """
        for numbers, _ in block.bins():
            if self.held.is_torn(numbers.tolist()):
                raise DamagedAnswerError(f"{self.target} returned other sequences with a group than came")
            sequences = [self.held[number] for number in numbers.tolist()]
            for index, budget in enumerate(self.options.budgets):
                if sum(sequence.amounts[index] for sequence in sequences) > budget.cap:
                    raise too_old("resources")
            if any(sequence.version < oldest_version for sequence in sequences):
                raise too_old("max_staleness")
            if self.options.separate_versions and len({sequence.version for sequence in sequences}) > 1:
                raise too_old("separate_versions")

    def _may_be_evicted(self, number: int, oldest_version: int) -> bool:
        """Whether a sequence is too old; with `evict_groups`, whether any sequence of its group is."""
        sequence = self.held[number]
        version = self.held.oldest_version_of_group(sequence) if self.options.evict_groups else sequence.version
        return version < oldest_version
