"""Bins of a server: drawing them by position, and explaining the step of a rank.

Owns requesting bins, and looking up the facts of their sequences (keys, lengths, origins, first tokens). Leaves drawing
to `picture`, and pictures of a batch too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from packhorse.client import BinBlock, Client
from packhorse.client.api import DEFAULT_TOPOLOGY
from packhorse.client.batches.summary import fullness_text
from packhorse.client.options import NO_SKIPS
from packhorse.client.streams import AS_IT_IS, MASKED
from packhorse.pictures._rows import SeenRow, SeenSequence
from packhorse.pictures.picture import FIRST_TOKENS, Picture, shortened
from packhorse.tokens.pieces import PieceRule
from packhorse.topology import ADDED, DEFAULT_COST_LINEAR, Skips, StreamMode, Topology, cost_of
from packhorse.types import Component, DatasetInfo

if TYPE_CHECKING:
    from packhorse.client import TokenSource

_DRAWN_BINS = 8
"""Number of bins that are drawn if no positions are given."""

Decode = Callable[[list[int]], str]
"""Turns tokens into text."""


def draw_bins(
    client: Client,
    dataset: str,
    *,
    positions: Sequence[int] | None = None,
    epoch: int = 0,
    seed: int = 0,
    skip: Skips = NO_SKIPS,
    tokens: "TokenSource | None" = None,
    decode: Decode | None = None,
) -> Picture:
    """Draws bins of an epoch: their sequences to scale and, with a token source, how each begins.

    Example:
        >>> from packhorse.client import connect
        >>> with connect("embedded:datasets") as client:
        ...     print(draw_bins(client, "corpus", positions=[1], seed=1).text(width=60))
        corpus, epoch 0, seed 1
        1 row of 8 tokens: 2 sequences, 8 tokens (100.00 % full)
        position 1  │──────── 0 (5) ────────│─── 1 (3) ───│  8 of 8

    Args:
        client: as `connect` returns it.
        dataset: name of the dataset.
        positions: positions of the bins; None for the epoch's first eight.
        epoch: 0-based.
        seed: seed of the run.
        skip: positions to leave out; the others are numbered again from 0.
        tokens: a source of sequences' own lengths, origins and first tokens.
        decode: turns tokens into text, e.g. `tokenizer.decode`.

    Raises:
        TokenSourceError: the source and the plan disagree.
    """
    info = client.get_dataset(dataset)
    with client.stream_bins(dataset, epoch=epoch, seed=seed, skip=skip) as stream:
        header = stream.header
    if positions is None:
        positions = range(min(_DRAWN_BINS, header.num_bins))
    block = client.get_bins(
        dataset, epoch=epoch, seed=seed, positions=list(positions), skip=skip, expected_digest=header.digest
    )
    rows = _Reader(client, info, tokens, decode).rows(block)
    return Picture(
        title="; ".join([f"{dataset}, epoch {epoch}, seed {seed}", *map(str, info.resources)]),
        rows=rows,
        num_rows=len(rows),
        summary=_summary(rows, info.max_seq_len),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExplainedStep:
    """The bins that one rank trains on in one step, and the sequences in them.

    Example:
        >>> from packhorse.client import connect
        >>> from packhorse.pictures import explain_step
        >>> with connect("embedded:datasets") as client:
        ...     step = explain_step(client, "corpus", step=1, seed=1)
        >>> step.ids, step.rows[0].position
        ([0, 1], 1)
    """

    dataset: str
    """Name of the dataset."""
    epoch: int
    """0-based."""
    seed: int
    """Seed of the run."""
    topology: Topology
    """Topology of the run."""
    step: int
    """Number of the step, counted from the topology's start_position."""
    num_steps: int
    """Steps of the epoch, counted from the same position."""
    rank: int
    """Data-parallel rank."""
    rows: tuple[SeenRow, ...]
    """The rank's bins in this step, by slot."""

    @property
    def ids(self) -> list[int]:
        """Ids of all sequences, bin after bin."""
        return [sequence.id for row in self.rows for sequence in row.sequences]

    @property
    def title(self) -> str:
        """Dataset, epoch, seed, step and rank, in one line."""
        return (
            f"{self.dataset}, epoch {self.epoch}, seed {self.seed}: step {self.step:,} of {self.num_steps:,}, "
            f"rank {self.rank} of {self.topology.world_size}"
        )

    def picture(self) -> Picture:
        """Returns a picture of the bins."""
        summary = _summary(self.rows, self.rows[0].capacity)
        return Picture(title=self.title, rows=self.rows, num_rows=len(self.rows), summary=summary)

    def facts(self) -> dict[str, Any]:
        """Returns the step as JSON values."""
        return {
            "dataset": self.dataset,
            "epoch": self.epoch,
            "seed": self.seed,
            "step": self.step,
            "num_steps": self.num_steps,
            "rank": self.rank,
            "world_size": self.topology.world_size,
            "bins": [row.facts() for row in self.rows],
        }

    def __repr__(self) -> str:
        """Returns the title, a line for each bin, and a line for each of its sequences."""
        mean = sum(row.cost for row in self.rows) / len(self.rows)
        lines = [self.title]
        for slot, row in enumerate(self.rows):
            times = f"{row.cost / mean:.2f} times the mean of these bins" if mean else "none"
            lines.append(
                f"slot {slot}, {row.name}: {len(row.sequences):,} sequences, {row.num_tokens:,} of {row.capacity:,} "
                f"tokens, cost {times}"
            )
            lines += [_line(sequence, row.cost) for sequence in row.sequences]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return self.picture().html()


def explain_step(
    client: Client,
    dataset: str,
    *,
    step: int,
    rank: int = 0,
    epoch: int = 0,
    seed: int = 0,
    topology: Topology = DEFAULT_TOPOLOGY,
    skip: Skips = NO_SKIPS,
    tokens: "TokenSource | None" = None,
    decode: Decode | None = None,
) -> ExplainedStep:
    """Finds the sequences that one rank trains on in one step, for example after a spike in the loss.

    Example:
        >>> from packhorse.client import as_token_source, connect
        >>> with connect("embedded:datasets") as client:
        ...     explain_step(client, "corpus", step=0, seed=1, tokens=as_token_source("corpus.idx"))
        corpus, epoch 0, seed 1: step 0 of 2, rank 0 of 1
        slot 0, position 0: 2 sequences, 8 of 8 tokens, cost 1.00 times the mean of these bins
            id 3, 5 tokens, 63 % of the cost, row 3 of corpus.bin: 0 1 2 3 4
            id 2, 3 tokens, 37 % of the cost, row 2 of corpus.bin: 0 1 2

    Args:
        client: as `connect` returns it.
        dataset: name of the dataset.
        step: step of the stream, counted from the topology's start_position.
        rank: data-parallel rank, in [0, world_size).
        epoch: 0-based.
        seed: seed of the run.
        topology: topology of the run; the number of workers makes no difference.
        skip: positions that the run left out.
        tokens: a source of sequences' own lengths, origins and first tokens.
        decode: turns tokens into text, e.g. `tokenizer.decode`.

    Raises:
        ValueError: the epoch has no such step, or the mode is independent, in which ranks have no steps in common.
        TokenSourceError: the source and the plan disagree.
    """
    if topology.mode is StreamMode.INDEPENDENT:
        raise ValueError("mode must be partition: independent streams have no steps in common to be explained")
    if step < 0:
        raise ValueError(f"step must be at least 0, got {step}")
    info = client.get_dataset(dataset)
    num_bins = info.num_bins - skip.within(info.num_bins).num_skipped
    of_epoch = topology.of_epoch(epoch, num_bins=num_bins, max_seq_len=info.max_seq_len)
    with client.stream_bins(
        dataset,
        epoch=epoch,
        seed=seed,
        rank=rank,
        worker=topology.worker_of(step),
        topology=topology,
        skip=skip,
        first_step=min(step, of_epoch.num_steps(num_bins)),
    ) as stream:
        num_steps = stream.header.num_steps
        if step >= num_steps:
            raise ValueError(
                f"step must be in [0, {num_steps}), got {step}: from position {topology.start_position} on the epoch "
                f"has {num_steps} steps"
            )
        block = next(stream).slice(0, stream.topology.stretch_of(step).batch_size)
    return ExplainedStep(
        dataset=dataset,
        epoch=epoch,
        seed=seed,
        topology=topology,
        step=step,
        num_steps=num_steps,
        rank=rank,
        rows=_Reader(client, info, tokens, decode, topology.cost_linear).rows(block),
    )


class _Reader:
    """Looks up the facts of a block's sequences, from the server and a token source."""

    def __init__(
        self,
        client: Client,
        info: DatasetInfo,
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
        found = [
            self._sequence(
                block,
                i,
                keys[i],
                None if lengths is None else int(lengths[i]),
                None if component_ids is None else int(component_ids[i]),
            )
            for i in range(len(block.ids))
        ]
        rows, start = [], 0
        for position, end in zip(block.positions.tolist(), block.bin_ends.tolist(), strict=True):
            sequences = tuple(found[start:end])
            name = "added bin" if position == ADDED else f"position {position:,}"
            rows.append(SeenRow(name=name, capacity=self._info.max_seq_len, sequences=sequences, position=position))
            start = end
        return tuple(rows)

    def _keys(self, block: BinBlock, component_ids: NDArray[np.integer] | None) -> list[str]:
        """Returns each sequence's key; an empty string without one."""
        info, keys = self._info, [""] * len(block.ids)
        parts: Sequence[DatasetInfo | Component] = info.components or (info,)
        for component_id, part in enumerate(parts):
            if part.key_column:
                if component_ids is None:
                    indices = np.arange(len(keys))
                else:
                    indices = np.flatnonzero(component_ids == component_id)
                name = part.name if info.components else ""
                found = self._client.keys(info.name, block.ids[indices], component=name)
                for index, key in zip(indices.tolist(), found, strict=True):
                    keys[index] = key
        return keys

    def _lengths(self, block: BinBlock, component_ids: NDArray[np.integer] | None) -> NDArray[np.int64] | None:
        """Returns the length of each sequence, or piece: int64 [S]; None if only rooms are known."""
        rule, planned = PieceRule.of(self._info), block.lengths.astype(np.int64)
        if self._tokens is None:
            return planned if rule.rooms.is_plain else None
        held = self._tokens.of_sequences(component_ids).lengths(block.ids)
        return rule.own_lengths(block.ids, planned, held, block.first_tokens, component_ids)

    def _sequence(
        self, block: BinBlock, i: int, key: str, length: int | None, component_id: int | None
    ) -> SeenSequence:
        """Returns the facts of sequence i of a block; `length` is None if only its room is known."""
        sequence_id, room = int(block.ids[i]), int(block.lengths[i])
        first_token = 0 if block.first_tokens is None else int(block.first_tokens[i])
        group = -1 if block.group_ids is None else int(block.group_ids[i])
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
            group=None if group < 0 else group,
            cost=cost_of(room, self._cost_linear),
            origin=origin,
            first_tokens=first_tokens,
            text=shortened(self._decode, first_tokens),
            redaction=_redaction_words(redaction),
        )

    def _origin_in_input(self, sequence_id: int, component_id: int | None) -> str:
        """Returns where a sequence is in the input of prepare; empty if the server does not know the input."""
        part = self._info if component_id is None else self._info.components[component_id]
        source = part.source if isinstance(part, DatasetInfo) else part.name
        name = f"{part.id_column} {sequence_id}" if part.id_column else f"row {sequence_id}"
        return f"{name} of {source}" if source else ""


def _redaction_words(redaction: int) -> str:
    """Returns in words what a takedown makes of a sequence; empty for AS_IT_IS."""
    if redaction == AS_IT_IS:
        return ""
    return "masked" if redaction == MASKED else f"replaced by {redaction}"


def _summary(rows: Sequence[SeenRow], capacity: int) -> str:
    """Returns how full the rows are, in one line."""
    num_sequences = sum(len(row.sequences) for row in rows)
    return fullness_text(len(rows), capacity, num_sequences, sum(row.num_tokens for row in rows))


def _line(sequence: SeenSequence, cost_of_bin: int) -> str:
    """Returns a line about a sequence: its title, length, share of its bin's cost, origin and beginning."""
    parts = [f"    {sequence.title}", f"{sequence.tokens:,} tokens"]
    if cost_of_bin:
        parts.append(f"{100 * (sequence.cost or 0) / cost_of_bin:.0f} % of the cost")
    if sequence.redaction:
        parts.append(sequence.redaction)
    if sequence.origin:
        parts.append(sequence.origin)
    return ", ".join(parts) + (f": {sequence.beginning}" if sequence.beginning else "")
