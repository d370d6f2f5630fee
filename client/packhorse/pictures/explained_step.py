"""`ExplainedStep`: the bins that one rank trains on in one step, and `explain_step`, which finds them.

Owns requesting them, and describing them in words. Leaves the facts of their sequences to `_row_maker`, and drawing
them to `picture`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packhorse.client import Client
from packhorse.client.api import DEFAULT_TOPOLOGY
from packhorse.client.options import NO_SKIPS
from packhorse.pictures._row_maker import RowMaker
from packhorse.pictures._rows import SeenRow, SeenSequence, summary_of
from packhorse.pictures.beginnings import Decode
from packhorse.pictures.picture import Picture
from packhorse.topology import Skips, StreamMode, Topology

if TYPE_CHECKING:
    from packhorse.client import TokenSource


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
        summary = summary_of(self.rows, self.rows[0].capacity)
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
        mean_cost = sum(row.cost for row in self.rows) / len(self.rows)
        lines = [self.title]
        for slot, row in enumerate(self.rows):
            cost = f"{row.cost / mean_cost:.2f} times the mean of these bins" if mean_cost else "none"
            lines.append(
                f"slot {slot}, {row.name}: {len(row.sequences):,} sequences, {row.num_tokens:,} of {row.capacity:,} "
                f"tokens, cost {cost}"
            )
            lines += [_sequence_line(sequence, row.cost) for sequence in row.sequences]
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
        first_step=min(step, of_epoch.num_steps(num_bins)),  # the server refuses one after the epoch's end
    ) as stream:
        num_steps = stream.header.num_steps
        if step >= num_steps:
            raise ValueError(
                f"step must be in [0, {num_steps}), got {step}: from position {topology.start_position} on the epoch "
                f"has {num_steps} steps"
            )
        block = next(stream).slice(0, stream.topology.stretch_of(step).batch_size)  # it may hold later steps too
    maker = RowMaker(client, info, tokens=tokens, decode=decode, cost_linear=topology.cost_linear)
    return ExplainedStep(
        dataset=dataset,
        epoch=epoch,
        seed=seed,
        topology=topology,
        step=step,
        num_steps=num_steps,
        rank=rank,
        rows=maker.rows(block),
    )


def _sequence_line(sequence: SeenSequence, cost_of_bin: int) -> str:
    """Returns a line about a sequence: its title, length, share of its bin's cost, origin and beginning."""
    parts = [f"    {sequence.title}", f"{sequence.num_tokens:,} tokens"]
    if cost_of_bin:
        parts.append(f"{100 * (sequence.cost or 0) / cost_of_bin:.0f} % of the cost")
    if sequence.redaction:
        parts.append(sequence.redaction)
    if sequence.origin:
        parts.append(sequence.origin)
    return ", ".join(parts) + (f": {sequence.beginning}" if sequence.beginning else "")
