"""Audit of tokens: compares the batches of an epoch with a token source, token by token.

Owns reading what is expected from the source, and the totals. Leaves building expected rows to `proof._expected_row`,
making batches to `PackedDataset`, as in training, and reading streams to `proof.epoch_audit`. Memory does not grow with
the epoch, unless sequences are missing: naming them takes a byte for each sequence of the source.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from packhorse.client import BinBlock, PackedBatch, PackedDataset, TokenSource
from packhorse.client.batches import IGNORE_INDEX, RowFormat
from packhorse.client.streams import AS_IT_IS, MASKED
from packhorse.parameters import parameter
from packhorse.proof._expected_row import PADDING, ExpectedRow
from packhorse.proof.epoch_audit import AuditReport, EpochOfStreams, named_ids
from packhorse.tokens import TokenSourceError
from packhorse.tokens.pieces import PieceRule
from packhorse.topology import RemainderPolicy
from packhorse.types import Component, DatasetInfo, StreamHeader

_MOST_NAMED = 10
"""Findings that a report lists, and ids that a finding names."""
_KNOWN = ("separators", "pad_token_id", "flatten", "total_multiple_of", "shift_labels", "shared_prefix", "media")
"""Fields of `RowFormat` that this module knows. Batches with a value in another field are not audited."""
_MOST_MARKED = 1 << 28
"""The most sequences of a source whose missing ids are named, which takes a byte of memory for each."""


@dataclass(kw_only=True)
class TokenReport:
    """The counts and findings of a token audit.

    Example:
        >>> TokenReport(streams=AuditReport(sequences=3), tokens=10).problems
        []
    """

    streams: AuditReport
    """The audit of the streams; its problems are among `problems`."""
    tokens: int = 0
    """Tokens of the epoch's sequences, including those that no trainer gets; without separators."""
    cut_tokens: int = 0
    """Tokens of these sequences that the over-length policy cut."""
    dropped_sequences: int = 0
    """Sequences that the over-length policy dropped, by the dataset's facts."""
    dropped_tokens: int = 0
    """Tokens of the dropped sequences."""
    skipped_rows: int = 0
    """Bad rows of the source that `packhorse prepare` left out."""
    targets: int = 0
    """Tokens that are trained on, among `tokens` and separators."""
    differing: int = 0
    """Number of differences: at most one for each sequence, and for the padding of each row; one for each batch whose
    tokens the source refused."""
    findings: list[str] = field(default_factory=list)
    """The first differences, in words, and wrong totals."""

    @property
    def problems(self) -> list[str]:
        """All problems; empty if every token came exactly once."""
        rest = self.differing - _MOST_NAMED
        more = [f"{rest:,} more sequences differ"] if rest > 0 else []
        return [*self.streams.problems, *self.findings, *more]


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenAudit:
    """Compares an epoch's batches with a token source.

    The dataset makes tensors of every bin, exactly as in training. The same rows are built again with the source's
    `read`, one sequence at a time, and every tensor is compared. At the end, except for a mixture, totals are compared:
    every token of the source must have come once, except tokens that prepare cut or dropped, or whose row it skipped.

    Example:
        >>> from packhorse.client import PackedDataset, Topology, connect
        >>> from packhorse.proof import EpochOfStreams
        >>> dataset = PackedDataset("embedded:datasets", "corpus", "corpus.idx", batch_size=1, rank=(0, 1))
        >>> with connect("embedded:datasets") as client:
        ...     info = client.get_dataset("corpus")
        ...     streams = EpochOfStreams(client=client, dataset=info, epoch=0, seed=1, topology=Topology())
        ...     report = TokenAudit(streams=streams, dataset=dataset).audit()
        >>> report.tokens, report.problems
        (16, [])
    """

    streams: EpochOfStreams
    """The epoch, and how ranks share it."""
    dataset: PackedDataset
    """The dataset that makes the batches; its tokens, loss mask and separators are audited. Its batches must be plain:
    no preset, not flattened, and positions that begin at 0 in each sequence."""
    against: TokenSource | None = None
    """The tokens to compare with, such as the data from which the dataset was prepared; None for the dataset's own
    source."""
    loss_against: TokenSource | None = None
    """The loss mask to compare with; None for the dataset's own."""

    def audit(self, *, on_bins: Callable[[int], None] = lambda _: None) -> TokenReport:
        """Reads the epoch once; calls `on_bins` with the number of bins of every block, for progress."""
        check = _Check(self)
        report = check.report
        report.streams = self.streams.audit(on_bins=on_bins, on_block=check)
        if report.streams.streamed_bins:
            report.findings += check.totals()
        return report


class _Check:
    """The comparison, block by block; called by `EpochOfStreams.audit` with every block."""

    def __init__(self, audit: TokenAudit) -> None:
        self.report = TokenReport(streams=AuditReport())
        self._info = info = audit.streams.dataset
        self._streams = audit.streams
        self._maker = maker = audit.dataset.maker
        form = maker.form
        unknown = [option for option in fields(RowFormat) if option.name not in _KNOWN]
        has_unknown = any(getattr(form, option.name) != option.default for option in unknown)
        if maker.preset is not None or form.is_flat or form.shared_prefix == "tree" or has_unknown:
            raise ValueError(
                "a token audit compares plain batches: make its dataset without a preset, flatten, "
                f"shared_prefix='tree' and {' and '.join(option.name for option in unknown)}"
            )
        if maker.wants_tokens and audit.against is None:
            raise ValueError("tokens from the server are compared with files: give against=")
        self._leaves_out_last = form.separators.leaves_out_last(info.extra_tokens)
        self._against = _of_dataset(audit.against or maker.tokens, info)
        loss_mask = audit.loss_against or (None if maker.wants_tokens else maker.loss_mask)
        self._loss_against = None if loss_mask is None else _of_dataset(loss_mask, info)
        # A dataset that is no mixture is its own component 0.
        components: tuple[DatasetInfo | Component, ...] = info.components or (info,)
        rule = PieceRule.of(info)
        self._longest = rule.longest_of_components or (rule.longest,)  # most tokens of a piece; None if all are whole
        self._splits = [component.over_length == "split" for component in components]
        self._repeats = audit.streams.topology.remainder is RemainderPolicy.REPEAT
        self._num_sequences = 0  # sequences that came, counted by their first piece
        self._source_tokens = 0  # their tokens in the source
        self._has_failed = False  # whether the source refused a batch

    def __call__(self, block: BinBlock, header: StreamHeader) -> None:
        """Makes a block's bins into batches and compares them."""
        self._maker.prepare(header, as_sent=True)
        batch_size = len(block) // len(block.steps) if block.steps else 1  # an empty block has no steps
        for first in range(0, len(block), batch_size):
            bins = block.slice(first, min(first + batch_size, len(block)))
            try:
                batch = self._maker.assemble(bins)
                self._compare(bins, batch)
            except TokenSourceError as error:
                self._has_failed = True
                self._find(str(error))

    def totals(self) -> Iterator[str]:
        """Yields problems with the totals of tokens and sequences, after the last block; sets them in the report."""
        info, report = self._info, self.report
        if self._has_failed or report.streams.problems:
            return  # the counts are not complete
        if info.components:
            return  # an epoch of a mixture need not contain all of its components
        if info.over_length == "drop":
            report.dropped_sequences = info.over_length_sequences
            report.dropped_tokens = info.over_length_tokens
        # A sequence that shares a prefix came without it, which is no cut.
        report.cut_tokens = 0 if info.shares_prefixes else self._source_tokens - report.tokens
        if info.own_tokens and report.tokens != info.own_tokens:
            yield (
                f"batches hold {report.tokens:,} tokens of the source; the dataset was prepared from "
                f"{info.own_tokens:,}: with align {info.align} a length that differs by less can hide in its room; "
                "compare with the data that it was prepared from (" + parameter("against") + ") to see where"
            )
        cut = info.over_length_tokens if info.over_length == "truncate" else 0
        if report.cut_tokens != cut:
            yield (
                f"{report.cut_tokens:,} tokens of the source were cut; the ledger of over-length sequences says "
                f"{cut:,}: the source is not the one that the dataset was prepared from"
            )
        report.skipped_rows = info.skipped_rows
        num_held = self._against.num_sequences  # None if the source cannot tell
        if num_held is not None and num_held != self._num_sequences + report.dropped_sequences + report.skipped_rows:
            came = [
                f"{self._num_sequences:,} came",
                f"{report.dropped_sequences:,} were dropped as too long" if report.dropped_sequences else "",
                f"{report.skipped_rows:,} rows were skipped" if report.skipped_rows else "",
            ]
            yield (
                f"{self._against.where} holds {num_held:,} sequences, but {' and '.join(filter(None, came))}"
                + self._missing(num_held)
            )

    def _compare(self, bins: BinBlock, batch: PackedBatch) -> None:
        """Compares every row of a batch with the row that is expected for its bin."""
        is_token = batch["attention_mask"].numpy() == 1
        tensors: dict[str, NDArray[np.integer]] = {
            "input_ids": batch["input_ids"].numpy(),
            "attention_mask": batch["attention_mask"].numpy(),
            "labels": batch["labels"].numpy(),
            "sequence_ids": np.where(is_token, batch["sequence_ids"].numpy(), PADDING),
            "position_ids": np.where(is_token, batch["position_ids"].numpy(), PADDING),
        }
        start = 0
        for row, end in enumerate(bins.bin_ends.tolist()):
            # A bin without a position fills the last step. If it repeats one, its sequences are counted there.
            is_counted = bins.positions[row] >= 0 or not self._repeats
            component_id = 0 if bins.component_ids is None else int(bins.component_ids[row])
            expected = self._row(bins, start, end, component_id, is_counted=is_counted)
            where = f"bin at position {bins.positions[row]}" if bins.positions[row] >= 0 else "a bin of the last step"
            for finding in expected.differences({name: tensor[row] for name, tensor in tensors.items()}):
                self._find(f"{finding} ({where})")
            start = end

    def _row(self, bins: BinBlock, start: int, end: int, component_id: int, *, is_counted: bool) -> ExpectedRow:
        """Builds the expected row of a bin, whose sequences are [start, end) of `bins`.

        `is_counted` is False for a bin that is repeated to fill the last step.
        """
        longest, against = self._longest[component_id], self._against.of_component(component_id)
        separators, shift = self._maker.form.separators, self._maker.form.shifts_labels
        row = ExpectedRow(
            self._info.max_seq_len,
            self._maker.form.pad_token_id,
            shift=shift,
            leaves_out_last=self._leaves_out_last,
        )
        first_tokens = bins.first_tokens
        for index in range(start, end):
            sequence_id, first = int(bins.ids[index]), 0 if first_tokens is None else int(first_tokens[index])
            whole = against.read(sequence_id)
            piece = whole[first:] if longest is None else whole[first : first + longest]
            redaction = AS_IT_IS if bins.redactions is None else int(bins.redactions[index])
            if redaction not in (AS_IT_IS, MASKED):
                piece = np.full(len(piece), redaction)
            if redaction != AS_IT_IS:
                is_predicted = np.zeros(len(piece), dtype=np.bool_)
            elif self._loss_against is not None:
                loss_against = self._loss_against.of_component(component_id)
                is_predicted = loss_against.read(sequence_id, first, len(piece)).astype(np.bool_)
            else:
                is_predicted = np.ones(len(piece), dtype=np.bool_)
            begins, ends = first == 0, first + len(piece) == len(whole)
            row.add(
                sequence_id,
                int(bins.lengths[index]),
                piece,
                is_predicted,
                first=first,
                bos=separators.bos_token_id if begins else None,
                eos=separators.eos_token_id if ends else None,
            )
            if is_counted:
                self.report.tokens += len(piece)
                # Of a split sequence's pieces only the first counts it. Other sequences come once, even if without the
                # beginning that they share with another one.
                if begins or not self._splits[component_id]:
                    self._num_sequences += 1
                    self._source_tokens += len(whole)
        if is_counted:
            self.report.targets += int((row.labels != IGNORE_INDEX).sum())
        return row

    def _find(self, finding: str) -> None:
        """Counts a difference, and notes it if it is among the first."""
        self.report.differing += 1
        if self.report.differing <= _MOST_NAMED:
            self.report.findings.append(finding)

    def _missing(self, num_held: int) -> str:
        """Reads the streams again, and returns text that names rows of the source that never came.

        The text is empty if ids are not row numbers, or the source has too many rows.
        """
        if self._info.id_column or num_held > _MOST_MARKED:
            return ""
        has_come = np.zeros(num_held, dtype=np.bool_)
        for block in self._streams.blocks():
            has_come[block.ids] = True
        missing = np.flatnonzero(~has_come)
        named = ", ".join(named_ids(self._streams.client, self._info, missing[:_MOST_NAMED]))
        more = f" and {len(missing) - _MOST_NAMED:,} more" if len(missing) > _MOST_NAMED else ""
        says = f": no batch holds the ids {named}{more}"
        if self._info.skipped_rows:  # the source cannot tell the length of a row that cannot be read
            return says
        tokens = int(self._against.lengths(missing[:_MOST_NAMED]).sum())
        return f"{says}; the ids named have {tokens:,} tokens"


def _of_dataset(source: TokenSource, info: DatasetInfo) -> TokenSource:
    """Returns the source with look-up by the dataset's ids, or by its components' ids."""
    return source.for_components(info.components) if info.components else source.for_ids(info.id_column)
