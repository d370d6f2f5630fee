"""`RowMaker`: rows to draw, made of a block of bins, with the facts of their sequences.

Owns looking up keys, lengths, origins and first tokens. Leaves requesting bins to `pictures/bins` and `explained_step`.
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from packhorse.client import BinBlock, Client
from packhorse.client.streams import AS_IT_IS, MASKED
from packhorse.pictures._rows import SeenRow, SeenSequence
from packhorse.pictures.beginnings import FIRST_TOKENS, Decode, shortened
from packhorse.tokens.pieces import PieceRule
from packhorse.topology import ADDED, DEFAULT_COST_LINEAR, cost_of
from packhorse.types import DatasetInfo

if TYPE_CHECKING:
    from packhorse.client import TokenSource


class RowMaker:
    """Makes rows of blocks of one dataset, with what the server and a token source know of their sequences.

    Args:
        client: an open client, which is asked for keys.
        info: the facts of the dataset.
        tokens: a source of lengths, origins and first tokens; None without one.
        decode: turns tokens into text; None for no text.
        cost_linear: cost of a token without attention, as in the run's topology.
    """

    def __init__(
        self,
        client: Client,
        info: DatasetInfo,
        *,
        tokens: "TokenSource | None",
        decode: Decode | None,
        cost_linear: int = DEFAULT_COST_LINEAR,
    ) -> None:
        self._client = client
        self._info = info
        self._tokens = None
        if tokens is not None:
            self._tokens = tokens.for_components(info.components) if info.components else tokens.for_ids(info.id_column)
        self._decode = decode
        self._cost_linear = cost_linear

    def rows(self, block: BinBlock) -> tuple[SeenRow, ...]:
        """Returns the bins of a block as rows to draw."""
        component_ids = block.component_of_sequences()
        lengths, keys = self._lengths(block, component_ids), self._keys(block, component_ids)
        sequences = [
            self._sequence(
                block,
                i,
                key=keys[i],
                length=None if lengths is None else int(lengths[i]),
                component_id=None if component_ids is None else int(component_ids[i]),
            )
            for i in range(len(block.ids))
        ]
        rows, start = [], 0
        for position, end in zip(block.positions.tolist(), block.bin_ends.tolist(), strict=True):
            rows.append(
                SeenRow(
                    name="added bin" if position == ADDED else f"position {position:,}",
                    capacity=self._info.max_seq_len,
                    sequences=tuple(sequences[start:end]),
                    position=position,
                )
            )
            start = end
        return tuple(rows)

    def _keys(self, block: BinBlock, component_ids: NDArray[np.integer] | None) -> list[str]:
        """Returns the key of each sequence of a block; an empty string without one."""
        info, keys = self._info, [""] * len(block.ids)
        if component_ids is None:
            return self._client.keys(info.name, block.ids) if info.key_column else keys
        for component_id, component in enumerate(info.components):
            if not component.key_column:
                continue
            indices = np.flatnonzero(component_ids == component_id)
            keys_of_component = self._client.keys(info.name, block.ids[indices], component=component.name)
            for index, key in zip(indices.tolist(), keys_of_component, strict=True):
                keys[index] = key
        return keys

    def _lengths(self, block: BinBlock, component_ids: NDArray[np.integer] | None) -> NDArray[np.int64] | None:
        """Returns the length of each of S sequences, or pieces: int64 [S]; None if only rooms are known."""
        rule, rooms = PieceRule.of(self._info), block.lengths.astype(np.int64)
        if self._tokens is None:
            return rooms if rule.rooms.is_plain else None  # plain: every sequence fills its room
        source_lengths = self._tokens.of_sequences(component_ids).lengths(block.ids)
        return rule.own_lengths(block.ids, rooms, source_lengths, block.first_tokens, component_ids)

    def _sequence(
        self, block: BinBlock, i: int, *, key: str, length: int | None, component_id: int | None
    ) -> SeenSequence:
        """Returns the facts of sequence i of a block.

        `length` is None if only its room is known, and `component_id` if the dataset is no mixture.
        """
        sequence_id, room = int(block.ids[i]), int(block.lengths[i])
        first_token = 0 if block.first_tokens is None else int(block.first_tokens[i])
        group = None if block.group_ids is None or block.group_ids[i] < 0 else int(block.group_ids[i])
        redaction = AS_IT_IS if block.redactions is None else int(block.redactions[i])
        first_tokens: tuple[int, ...] = ()
        if self._tokens is None:
            origin = self._origin_in_input(sequence_id, component_id)
        else:
            tokens = self._tokens if component_id is None else self._tokens.of_component(component_id)
            origin = tokens.origin(sequence_id)
            count = min(FIRST_TOKENS, room if length is None else length)
            first_tokens = tuple(tokens.read(sequence_id, first_token, count).tolist())
        return SeenSequence(
            id=sequence_id,
            key=key,
            room=room,
            length=length,
            first_token=first_token,
            group=group,
            cost=cost_of(room, self._cost_linear),
            origin=origin,
            first_tokens=first_tokens,
            text=shortened(self._decode, first_tokens),
            redaction=_redaction_words(redaction),
        )

    def _origin_in_input(self, sequence_id: int, component_id: int | None) -> str:
        """Returns where a sequence is in the input of prepare; empty if the server does not know the input."""
        if component_id is None:
            source, id_column = self._info.source, self._info.id_column
        else:  # of a component's input only the component's name is known
            component = self._info.components[component_id]
            source, id_column = component.name, component.id_column
        name = f"{id_column} {sequence_id}" if id_column else f"row {sequence_id}"
        return f"{name} of {source}" if source else ""


def _redaction_words(redaction: int) -> str:
    """Returns in words what a takedown makes of a sequence; empty for AS_IT_IS."""
    if redaction == AS_IT_IS:
        return ""
    return "masked" if redaction == MASKED else f"replaced by {redaction}"
