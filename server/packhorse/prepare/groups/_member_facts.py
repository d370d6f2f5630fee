"""Facts of the members of all groups that fit a bin, added up while the groups are read in order.

Owns sums, ranges and orders of the members' ids, lengths and first tokens. Which groups fit is in `_tally`.
"""

from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset import OverLengthLedger, SequenceFacts
from packhorse.prepare.counting import LengthFacts, exact_sum
from packhorse.prepare.totals import IdType, stored_dtype
from packhorse.wire import ids_sum


class MemberFacts:
    """Facts of the members that were added up to now: sequences, or pieces of sequences."""

    def __init__(self) -> None:
        self.num_members = 0
        self.ids_ascend = True
        """Whether ids ascend from member to member; of pieces of one sequence, only the first counts."""
        self._last_id = -(2**63)
        self._sums = LengthFacts()
        self._ids_sum_a = self._ids_sum_b = 0
        self._lowest_id, self._highest_id = 2**63 - 1, -(2**63)
        self._nonzero_first_tokens = [np.empty((0, 2), dtype=np.int64)]
        """(index of the member, its first token) of members whose first token is not 0: a list of int64 [n, 2]."""

    def add(
        self,
        members: NDArray[np.int64],
        first_tokens: NDArray[np.int64] | None,
        *,
        shares_prefixes: bool,
    ) -> None:
        """Adds the members of some groups.

        Args:
            members: (id, length) of each: int64 [n, 2].
            first_tokens: first token of each in its sequence: int64 [n]; None if all are 0.
            shares_prefixes: whether another member of the group holds the tokens before a member's first token. If not,
                a member whose first token is not 0 is a later piece of a sequence.
        """
        if not len(members):
            return
        ids = np.ascontiguousarray(members[:, 0])
        sum_a, sum_b = ids_sum(ids, first_tokens)
        self._ids_sum_a, self._ids_sum_b = (self._ids_sum_a + sum_a) % 2**64, (self._ids_sum_b + sum_b) % 2**64
        if first_tokens is not None:
            not_zero = np.flatnonzero(first_tokens)
            self._nonzero_first_tokens.append(np.stack((self.num_members + not_zero, first_tokens[not_zero]), axis=1))
            if not shares_prefixes:
                ids = ids[first_tokens == 0]  # later pieces repeat their sequence's id
        self.num_members += len(members)
        self._sums += LengthFacts.of(members[:, 1], np.ones(len(members), dtype=np.int64))
        if len(ids):
            self._lowest_id = min(self._lowest_id, int(ids.min()))
            self._highest_id = max(self._highest_id, int(ids.max()))
            self.ids_ascend &= int(ids[0]) > self._last_id and bool((ids[1:] > ids[:-1]).all())
            self._last_id = int(ids[-1])

    def in_manifest(self, over_length: OverLengthLedger) -> SequenceFacts:
        """Returns the facts as the manifest has them; `over_length` counts the over-long sequences."""
        return SequenceFacts(
            **asdict(self._sums),
            num_sequences=self.num_members,
            id_dtype=stored_dtype(self._lowest_id, self._highest_id),
            start_dtype=self._start_dtype(),
            over_length=over_length,
            ids_sum_a=self._ids_sum_a,
            ids_sum_b=self._ids_sum_b,
        )

    def first_tokens(self) -> NDArray[np.integer] | None:
        """Returns the first token of every member in its sequence: uint32 or int64 [n]; None if all are 0."""
        dtype = self._start_dtype()
        if dtype is None:
            return None
        first_tokens = np.zeros(self.num_members, dtype=dtype)
        members, nonzero = np.concatenate(self._nonzero_first_tokens).T
        first_tokens[members] = nonzero
        return first_tokens

    def shared_tokens(self) -> int:
        """Returns the number of tokens that take no room, because another sequence of their group has them.

        It has this meaning only if prefixes are shared: otherwise first tokens are those of pieces.
        """
        return sum(exact_sum(some[:, 1]) for some in self._nonzero_first_tokens)

    def _start_dtype(self) -> IdType | None:
        """Returns the type in which first tokens are stored; None if all are 0, and none is stored."""
        last = max(int(some[:, 1].max(initial=0)) for some in self._nonzero_first_tokens)
        return stored_dtype(0, last) if last else None
