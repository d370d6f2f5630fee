"""Audit of an epoch: reads every stream to check that each sequence comes exactly once.

Owns reading and counting. Leaves printing to `packhorse audit`, components of a mixture to `component_audit`, and
comparing tokens to `token_audit`. Memory does not grow with the epoch: hashes of ids are summed, and the sums are
compared with the dataset's. Only if they differ, the epoch is read again with all ids in memory, to name missing and
repeated ids.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.client import BinBlock, BinStream, Client, DigestMismatchError
from packhorse.client.options import NO_SKIPS
from packhorse.formats.keys import shown_key
from packhorse.parameters import parameter
from packhorse.proof.component_audit import ComponentReport, MixtureTally
from packhorse.proof.redactions import num_redacted
from packhorse.topology import RemainderPolicy, Skips, Topology
from packhorse.types import DatasetInfo, StreamHeader
from packhorse.wire import ids_sum

_NAMED_IDS = 10
"""Ids that a problem names."""
_POSITIONS_AT_ONCE = 1024
"""The most bins of one request by position."""
_TOKENS_AT_ONCE = 8 << 20
"""The most tokens of one request by position that asks for tokens; about 32 MiB."""


class LeftOut(NamedTuple):
    """How many bins and sequences an option leaves out of the streams."""

    bins: int
    sequences: int


@dataclass(kw_only=True)
class AuditReport:
    """The counts and problems of an audit.

    Example:
        >>> AuditReport(sequences=4, tokens=16, bins=2, streamed_bins=2).problems  # nothing is wrong
        []
    """

    sequences: int = 0
    """Sequences of the epoch, streamed or left out; without repeated ones."""
    tokens: int = 0
    """Tokens of these sequences."""
    bins: int = 0
    """Bins with at least one sequence."""
    empty_bins: int = 0
    """Bins without a sequence."""
    repeated: int = 0
    """Sequences in bins that the REPEAT policy added; not counted above."""
    masked: int = 0
    """Streamed sequences that a takedown masks from the loss."""
    replaced: int = 0
    """Streamed sequences whose tokens a takedown replaces."""
    streamed_bins: int = 0
    """Bins in the streams, including empty and repeated ones. If it is 0, nothing was audited."""
    left_out: dict[str, LeftOut] = field(default_factory=dict)
    """Option, such as `skip` → the bins that no trainer gets because of it. They are counted in `sequences`, `tokens`
    and `bins`, but not in `masked` and `replaced`."""
    sums: tuple[int, int] = (0, 0)
    """Two sums, modulo 2^64, of hashes of each sequence's id and first token; see `packhorse.wire.ids_sum`."""
    num_steps: int = 0
    """Steps that every rank takes."""
    components: list[ComponentReport] = field(default_factory=list)
    """Counts of each component of a mixture; empty for other datasets."""
    problems: list[str] = field(default_factory=list)
    """The problems; empty if every sequence came exactly once."""

    def add(
        self,
        block: BinBlock,
        max_seq_len: int,
        *,
        repeats: bool,
        tally: MixtureTally | None = None,
        left_out_by: str = "",
    ) -> NDArray[np.void]:
        """Counts a block, and returns the `_entries` of its sequences.

        Args:
            block: bins of a stream, or bins read by position.
            max_seq_len: a bin's capacity in tokens.
            repeats: whether bins without a position are copies that fill the last step.
            tally: counts the components of a mixture; None for other datasets.
            left_out_by: the option because of which no trainer gets the block; empty for a block that trainers get.
        """
        bounds = np.concatenate(([0], block.bin_ends))  # ends [2, 3] -> [0, 2, 3]
        sizes = np.diff(bounds)  # sequences of each bin
        self._check_capacity(block, bounds, max_seq_len)
        is_original = (block.positions >= 0) | (not repeats)  # of each bin: whether it is no copy
        is_counted = np.repeat(is_original, sizes)  # of each sequence
        ids = block.ids[is_counted]
        first_tokens = None if block.first_tokens is None else block.first_tokens[is_counted]
        self.repeated += int((~is_counted).sum())
        self.sequences += len(ids)
        self.tokens += int(block.lengths[is_counted].sum(dtype=np.int64))
        self.bins += int((sizes > 0).sum())
        self.empty_bins += int((sizes == 0).sum())
        if left_out_by:
            before = self.left_out.get(left_out_by, LeftOut(0, 0))
            num_bins = int(is_original.sum())
            self.left_out[left_out_by] = LeftOut(before.bins + num_bins, before.sequences + len(ids))
        else:
            masked, replaced = num_redacted(None if block.redactions is None else block.redactions[is_counted])
            self.masked += masked
            self.replaced += replaced
        pairs = zip(self.sums, ids_sum(ids, first_tokens), strict=True)
        sum_1, sum_2 = ((total + of_block) % 2**64 for total, of_block in pairs)
        self.sums = sum_1, sum_2
        entries = _entries(ids, first_tokens)
        if tally is not None:
            tally.add(block, entries, is_counted, is_left_out=bool(left_out_by))
        return entries

    def _check_capacity(self, block: BinBlock, bounds: NDArray[np.int64], max_seq_len: int) -> None:
        """Adds a problem if a bin of a block holds more than `max_seq_len` tokens; names the first one."""
        tokens_before = np.concatenate(([0], np.cumsum(block.lengths, dtype=np.int64)))  # of each sequence
        tokens = np.diff(tokens_before[bounds])  # of each bin
        is_overfull = tokens > max_seq_len
        if is_overfull.any():
            first = int(is_overfull.argmax())
            self.problems.append(
                f"the bin at position {block.positions[first]} holds {tokens[first]} tokens, over {max_seq_len}"
            )


def _entries(ids: NDArray[np.int64], first_tokens: NDArray[np.int64] | None) -> NDArray[np.void]:
    """Returns (id, start) of each sequence as a structured array [n], whose entries compare as one value."""
    entries = np.zeros(len(ids), dtype=[("id", np.int64), ("start", np.int64)])
    entries["id"] = ids
    if first_tokens is not None:
        entries["start"] = first_tokens
    return entries


def named_ids(client: Client, dataset: DatasetInfo, ids: NDArray[np.int64]) -> list[str]:
    """Returns how an audit names ids of a prepared dataset, int64 [n]: with their keys, if the dataset has keys.

    Example:
        >>> from packhorse.client import connect
        >>> with connect("embedded:datasets") as client:
        ...     named_ids(client, client.get_dataset("corpus"), np.array([3, 2]))
        ['3', '2']
    """
    keys = client.keys(dataset.name, ids) if dataset.key_column else [""] * len(ids)
    return [
        f"{number} {shown_key(key)}" if key else str(number) for number, key in zip(ids.tolist(), keys, strict=True)
    ]


@dataclass(frozen=True, kw_only=True)
class EpochOfStreams:
    """One epoch, streamed under one topology, to be audited.

    Example:
        >>> from packhorse.client import connect
        >>> with connect("embedded:datasets") as client:
        ...     corpus, two_ranks = client.get_dataset("corpus"), Topology(world_size=2)
        ...     streams = EpochOfStreams(client=client, dataset=corpus, epoch=0, seed=1, topology=two_ranks)
        ...     report = streams.audit()
        >>> report.sequences, report.problems
        (4, [])
    """

    client: Client
    """An open client."""
    dataset: DatasetInfo
    """The facts of the dataset, from `Client.get_dataset`."""
    epoch: int
    """0-based."""
    seed: int
    """Seed of the run."""
    topology: Topology
    """How ranks and workers share the epoch."""
    skip: Skips = NO_SKIPS
    """Positions that are left out."""
    until: int | None = None
    """The position of a cursor: trainers got no bin from there on. None for the whole epoch."""
    with_tokens: bool = False
    """Whether bins are read with the tokens that the server sends."""

    def audit(
        self,
        *,
        on_bins: Callable[[int], None] = lambda _: None,
        on_block: Callable[[BinBlock, StreamHeader], None] = lambda block, header: None,
    ) -> AuditReport:
        """Reads every stream once and compares it with the dataset.

        If no stream has a bin, `streamed_bins` is 0 and there is no problem.

        Args:
            on_bins: called with the number of bins of every block, for progress.
            on_block: called with every block and a header of the epoch.

        Raises:
            ValueError: `until` is after the epoch's end.
        """
        report = AuditReport()
        tally = None
        for block, header, left_out_by in self._blocks(report):
            tally = tally or (MixtureTally(header.components) if header.components else None)
            report.add(block, self.dataset.max_seq_len, repeats=self._repeats, tally=tally, left_out_by=left_out_by)
            on_block(block, header)
            on_bins(len(block))
            del block  # before the next block is read
        if not report.streamed_bins:
            return report
        if tally is not None:
            report.components = tally.reports()
            report.problems += [problem for component in report.components for problem in component.problems()]
            return report
        expected = (self.dataset.num_sequences, self.dataset.total_tokens, self.dataset.ids_sum)
        if (report.sequences, report.tokens, report.sums) != expected:
            report.problems.append(
                f"{report.sequences:,} sequences with {report.tokens:,} tokens came; the dataset has "
                f"{self.dataset.num_sequences:,} with {self.dataset.total_tokens:,}"
            )
            report.problems += self._named_differences()
        return report

    def blocks(self) -> Iterator[BinBlock]:
        """Yields every block of every stream, and then the bins that are in no stream."""
        for block, _, _ in self._blocks(AuditReport()):
            yield block

    @property
    def _repeats(self) -> bool:
        """Whether bins that were added to the last step are copies of others."""
        return self.topology.remainder is RemainderPolicy.REPEAT

    def _blocks(self, report: AuditReport) -> Iterator[tuple[BinBlock, StreamHeader, str]]:
        """Yields (block, header of its stream, option) for every block of `blocks`, and adds to `report`.

        The option is the one because of which no trainer gets the block; it is empty for blocks that trainers get.
        """
        header: StreamHeader | None = None
        for rank in range(self.topology.world_size):
            num_bins = 0  # of all workers of the rank
            for worker in range(self.topology.workers_per_rank):
                with self._stream(rank, worker) as stream:
                    header = stream.header
                    self._check_header(header)
                    for block in stream:
                        num_bins += len(block)
                        num_before = self._num_before(block, header.num_bins)
                        if num_before == len(block):
                            yield block, header, ""
                            continue
                        if num_before:
                            yield block.slice(0, num_before), header, ""
                        yield block.slice(num_before, len(block)), header, "until"
            assert header is not None
            report.streamed_bins += num_bins
            report.num_steps = header.num_steps
            if num_bins != stream.topology.num_rank_bins(range(header.num_steps)):
                report.problems.append(f"rank {rank} got {num_bins} bins in {header.num_steps} steps")
        if report.streamed_bins:
            assert header is not None
            for block, option in self._left_out_blocks(header):
                yield block, header, option

    def _check_header(self, header: StreamHeader) -> None:
        """Refuses a stream of another version of the dataset, and an `until` after the end of the epoch."""
        if not header.digest.startswith(self.dataset.digest):
            raise DigestMismatchError(
                f"{self.dataset.name!r} changed during the audit: it had digest {self.dataset.digest}, now a stream "
                f"has {header.digest}; audit it again",
                {"expected": self.dataset.digest, "actual": header.digest},
            )
        if self.until is not None and self.until > header.num_bins:
            raise ValueError(
                parameter("until", self.until)
                + f" is after the {header.num_bins:,} bins of epoch {self.epoch}: a cursor's position counts from the "
                "beginning of its epoch"
            )

    def _left_out_blocks(self, header: StreamHeader) -> Iterator[tuple[BinBlock, str]]:
        """Yields the bins that are in no stream, and the option because of which they are in none."""
        before_start = range(self.topology.start_position)
        dropped = range(header.num_bins - header.num_bins_dropped, header.num_bins)
        skipped = self.skip.within(self.dataset.num_bins)
        taken_down = header.skipped.minus(self.skip)
        for option, ranges, skip in (
            ("start_position", [before_start], self.skip),  # positions among those that `skip` leaves
            ('remainder="drop"', [dropped], self.skip),
            ("skip", [range(*bounds) for bounds in skipped.ranges], None),  # positions among all of the epoch
            (f"{self.dataset.name}.takedown.toml", [range(*bounds) for bounds in taken_down.ranges], None),
        ):
            for block in self._bins_at(ranges, skip):
                yield block, option

    def _num_before(self, block: BinBlock, num_bins: int) -> int:
        """Returns how many bins of a block come before `until`, in an epoch of `num_bins`.

        A cursor's position is where an optimizer step begins, and bins of later optimizer steps come later in a block.
        """
        if self.until is None or self.until >= num_bins:
            return len(block)
        beyond = np.flatnonzero((block.positions >= self.until) | (block.positions < 0))  # < 0: added to the last step
        return int(beyond[0]) if len(beyond) else len(block)

    def _stream(self, rank: int, worker: int) -> BinStream:
        """Opens the stream of a worker."""
        return self.client.stream_bins(
            self.dataset.name,
            epoch=self.epoch,
            seed=self.seed,
            rank=rank,
            worker=worker,
            topology=self.topology,
            skip=self.skip,
            with_tokens=self.with_tokens,
        )

    def _bins_at(self, ranges: Iterable[range], skip: Skips | None) -> Iterator[BinBlock]:
        """Yields blocks of the bins at ranges of positions.

        Positions count the bins that `skip` and a takedown leave; if `skip` is None, they count all bins of the epoch.
        """
        at_once = _POSITIONS_AT_ONCE
        if self.with_tokens:  # an answer is limited in size
            at_once = min(at_once, max(1, _TOKENS_AT_ONCE // self.dataset.max_seq_len))
        for positions in ranges:
            for first in range(positions.start, positions.stop, at_once):
                yield self.client.get_bins(
                    self.dataset.name,
                    epoch=self.epoch,
                    seed=self.seed,
                    positions=list(range(first, min(first + at_once, positions.stop))),
                    skip=skip or NO_SKIPS,
                    is_whole=skip is None,
                    with_tokens=self.with_tokens,
                )

    def _named_differences(self) -> list[str]:
        """Reads the epoch again, and returns problems that name missing and repeated ids.

        Ids in the streams are compared with ids of the same epoch read by position.
        """
        scratch = AuditReport()  # only the entries of its blocks are needed
        streamed = [
            scratch.add(block, self.dataset.max_seq_len, repeats=self._repeats) for block, _, _ in self._blocks(scratch)
        ]
        whole = self._bins_at([range(self.dataset.num_bins)], skip=None)
        by_position = [_entries(block.ids, block.first_tokens) for block in whole]
        came, times = np.unique(np.concatenate(streamed), return_counts=True)
        wanted, wanted_times = np.unique(np.concatenate(by_position), return_counts=True)
        findings = [
            f"{what}: {self._named(entries)}"
            for what, entries in (
                ("missing", np.setdiff1d(wanted, came)),
                ("not of this epoch", np.setdiff1d(came, wanted)),
                ("repeated", came[times > 1]),
                ("repeated in the epoch itself, read by position", wanted[wanted_times > 1]),
            )
            if len(entries)
        ]
        if len(wanted) != self.dataset.num_sequences:
            findings.append(f"read by position the epoch has {len(wanted):,} sequences: the dataset itself is damaged")
        return findings or ["the streams agree with the epoch read by position: the manifest's sums are wrong"]

    def _named(self, entries: NDArray[np.void]) -> str:
        """Returns the names of the first sequences, given by their `_entries`, and how many more there are."""
        first = entries[:_NAMED_IDS]
        names = named_ids(self.client, self.dataset, first["id"])
        named = [
            f"{name} from token {start}" if start else name
            for name, start in zip(names, first["start"].tolist(), strict=True)
        ]
        more = f" and {len(entries) - _NAMED_IDS:,} more" if len(entries) > _NAMED_IDS else ""
        return ", ".join(named) + more
