"""`ExpectedRow`: a row of a batch, built again sequence by sequence, with which the row of a trainer is compared.

It is a second, slow way to lay tokens, separators and labels out. Leaves reading tokens to `proof.token_audit`.
"""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from packhorse.client.batches import IGNORE_INDEX
from packhorse.tokens import TokenSourceError

PADDING = -1
"""In the comparison, the value of sequence_ids and position_ids on padding, and the owner of padding."""


class ExpectedRow:
    """An expected row, built sequence by sequence.

    Args:
        capacity: tokens that fit into the row.
        pad_token_id: the token of padding.
        shift: whether `labels[t]` is the token after t.
        leaves_out_last: whether rooms are one token too short for each sequence's last token, which then is only a
            target.
    """

    def __init__(self, capacity: int, pad_token_id: int, *, shift: bool, leaves_out_last: bool) -> None:
        self._shift = shift
        self._leaves_out_last = leaves_out_last
        self.input_ids = np.full(capacity, pad_token_id, dtype=np.int64)
        self.labels = np.full(capacity, IGNORE_INDEX, dtype=np.int64)
        self.attention_mask = np.zeros(capacity, dtype=np.int64)
        self._sequence_ids = np.full(capacity, PADDING, dtype=np.int32)
        self._position_ids = np.full(capacity, PADDING, dtype=np.int64)
        self._ids: list[int] = []  # of each sequence
        self._room_starts: list[int] = []  # where the room of each sequence begins in the row
        self._token_zeros: list[int] = []  # where each sequence's token 0 is in the row, or would be for a later piece
        self._filled = 0

    def add(
        self,
        sequence_id: int,
        room: int,
        piece: NDArray[np.integer],
        is_predicted: NDArray[np.bool_],
        *,
        first: int,
        bos: int | None,
        eos: int | None,
    ) -> None:
        """Appends a sequence, or a piece of one.

        Args:
            sequence_id: its id.
            room: its room in tokens.
            piece: its tokens [n].
            is_predicted: its loss mask: bool [n].
            first: index of the piece's first token in the sequence.
            bos: the separator before it, or None; it is never a target.
            eos: the separator after it, or None; it is a target if the last token is.
        """
        before, after = [] if bos is None else [bos], [] if eos is None else [eos]
        content = np.concatenate((before, piece, after)).astype(np.int64)
        predicted = np.concatenate(([False] * len(before), is_predicted, is_predicted[-1:] if after else []))
        targets = np.where(predicted, content, IGNORE_INDEX)
        targets[0] = IGNORE_INDEX  # no token before it predicts it
        if self._shift:
            targets = np.append(targets[1:], IGNORE_INDEX)
        if self._leaves_out_last and len(content) > 1:  # a room has at least one token
            content, targets = content[:-1], targets[:-1]
        start, end = self._filled, self._filled + len(content)
        if end > len(self.input_ids) or len(content) > room:
            raise TokenSourceError(
                f"sequence {sequence_id}: with {len(piece)} tokens it does not fit its room of {room} tokens; the "
                "data compared with is not what the dataset was prepared from"
            )
        self.input_ids[start:end] = content
        self.labels[start:end] = targets
        self.attention_mask[start:end] = 1
        self._sequence_ids[start:end] = len(self._ids)
        self._position_ids[start:end] = np.arange(len(content))
        self._ids.append(sequence_id)
        self._room_starts.append(start)
        self._token_zeros.append(start + len(before) - first)
        self._filled += room

    def differences(self, tensors: Mapping[str, NDArray[np.integer]]) -> Iterator[str]:
        """Yields a sentence for each sequence that differs, and one for the padding, if it does.

        Each is about the first wrong token of the first tensor that differs. `tensors` has the actual row, by name. On
        padding, sequence_ids and position_ids are PADDING in both.
        """
        starts = np.array(self._room_starts, dtype=np.int64)
        named: set[int] = set()  # sequences, by index, and PADDING: each is named once
        for name, right in (
            ("input_ids", self.input_ids),
            ("attention_mask", self.attention_mask),
            ("labels", self.labels),
            ("sequence_ids", self._sequence_ids),
            ("position_ids", self._position_ids),
        ):
            wrong = np.flatnonzero(tensors[name] != right)
            owners = np.where(wrong < self._filled, np.searchsorted(starts, wrong, side="right") - 1, PADDING)
            for owner, first, count in zip(*np.unique(owners, return_index=True, return_counts=True), strict=True):
                if owner in named:
                    continue
                named.add(int(owner))
                at = int(wrong[first])
                what = f"padding, token {at} of its row"
                if owner != PADDING:
                    what = f"sequence {self._ids[owner]}, token {at - self._token_zeros[owner]}"
                more = f" and {count - 1:,} more differ" if count > 1 else ""
                yield f"{what}: {name} hold {tensors[name][at]} instead of {right[at]}{more}"
