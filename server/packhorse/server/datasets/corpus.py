"""The tokens of one dataset or mixture, read bin by bin.

Owns how much of each sequence its entry has, and comparing that with the plan. Leaves finding and opening corpora to
`corpora`, and reading files and stores to `packhorse.tokens`.
"""

import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset import MASKED, MixtureDataset, Redacted
from packhorse.epoch import Bins
from packhorse.formats.file_stamp import FileStamp
from packhorse.server.datasets.protocols import Dataset
from packhorse.tokens import TokenSource
from packhorse.tokens.pieces import PieceRule

_LARGEST_TOKEN = 2**31 - 1


class BinTokens(NamedTuple):
    """The tokens of some bins. An entry is a sequence or piece in a bin. Shape letters: S entries, T tokens."""

    tokens: NDArray[np.unsignedinteger]
    """Tokens of all entries in their order, end to end: uint16 or uint32 [T]."""
    sizes: NDArray[np.int64] | None
    """Number of tokens of each entry: int64 [S]; None if each is a whole sequence that fills its room."""
    whole_sizes: NDArray[np.int64] | None
    """Number of tokens of each entry's whole sequence: int64 [S]; None if `sizes` is None."""
    loss_mask: NDArray[np.bool_] | None
    """Which tokens are predicted: bool [T]; None for all."""


class _Entries(NamedTuple):
    """The entries of some bins, and the sources that read them. Shape letter: S entries."""

    tokens: TokenSource
    """Source of their tokens."""
    loss_mask: TokenSource | None
    """Source of their loss mask; None if every token is predicted."""
    ids: NDArray[np.int64]
    """Id of each entry's sequence: int64 [S]."""
    planned: NDArray[np.int64]
    """Length of each entry in the plan: int64 [S]."""
    first_tokens: NDArray[np.int64] | None
    """Number of each entry's first token in its sequence: int64 [S]; None if all are 0."""
    component_ids: NDArray[np.int32] | None
    """Component of each entry: int32 [S]; None without a mixture."""


class _Copies(threading.local):
    """A thread's own copies of the sources: those that decode hold what they last fetched, so threads cannot share."""

    tokens_and_mask: tuple[TokenSource, TokenSource | None] | None = None
    """Copies of the sources of tokens and of the loss mask; None until this thread needs them."""


class Corpus:
    """The tokens of one dataset or mixture.

    Args:
        dataset: the dataset or mixture, whose options say how much of each sequence its room holds.
        tokens: the source of tokens, by the dataset's ids.
        loss_mask: the source of the loss mask, by the same ids; None if every token is predicted.
        files: path of each mapped file → the stamp that it had when it was opened.
    """

    def __init__(
        self, dataset: Dataset, tokens: TokenSource, loss_mask: TokenSource | None, files: Mapping[str, FileStamp]
    ) -> None:
        self._pieces = PieceRule.of(_PlanFacts(dataset))
        self._shares_prefixes = bool(dataset.manifest.shares_prefixes)
        self._tokens, self._loss_mask = tokens, loss_mask
        self._files = dict(files)
        self._copies = _Copies()

    @property
    def has_loss_mask(self) -> bool:
        """Whether some tokens are left out of the loss."""
        return self._loss_mask is not None

    @property
    def dtype(self) -> str:
        """NumPy's name of the type in which tokens are held; empty if it is not known."""
        return "" if self._tokens.token_dtype is None else self._tokens.token_dtype.name

    @property
    def knows_lengths(self) -> bool:
        """Whether lengths are known without reading tokens."""
        return self._tokens.knows_lengths

    def read(self, bins: Bins, redacted: Redacted | None) -> BinTokens:
        """Returns the tokens of bins, with the replacements of redacted sequences.

        Raises:
            ValueError: the tokens do not fit the plan, or a file was changed.
            OSError: the tokens cannot be read.
        """
        entries = self._entries_of(bins)
        sizes = whole_sizes = None
        is_cut = not self._pieces.are_whole(entries.first_tokens)
        if is_cut:
            whole_sizes = entries.tokens.lengths(entries.ids)
            sizes = self._own_lengths(entries, whole_sizes)
        elif self._shares_prefixes:  # an entry has its prefix's tokens too, for which its room has no place
            sizes = whole_sizes = entries.planned
        lengths = entries.planned if sizes is None else sizes

        def values_of_entries(source: TokenSource) -> NDArray[np.integer]:
            """Reads the values of all entries, end to end: [T]. If nothing is cut, other lengths are an error."""
            return source.end_to_end(entries.ids, lengths, first_tokens=entries.first_tokens, truncate=is_cut)

        tokens = values_of_entries(entries.tokens)
        mask = None
        if entries.loss_mask is not None:
            # If nothing is cut, `values_of_entries` compares lengths.
            if whole_sizes is not None and (entries.loss_mask.lengths(entries.ids) != whole_sizes).any():
                raise ValueError("the loss mask is of other tokens: its lengths differ")
            mask = _as_mask(values_of_entries(entries.loss_mask))
        self._check_files()
        if redacted is not None:  # what was taken down does not leave the server
            tokens = _with_replacements(tokens, lengths, redacted)
        return BinTokens(_narrowed(tokens), sizes, whole_sizes, mask)

    def check_lengths(self, bins: Bins) -> None:
        """Compares bins' lengths with those of the corpus; raises a ValueError if they do not fit."""
        entries = self._entries_of(bins)
        self._own_lengths(entries, entries.tokens.lengths(entries.ids))

    def _own_lengths(self, entries: _Entries, whole_sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns each entry's number of tokens, given that of its whole sequence; see `PieceRule.own_lengths`."""
        return self._pieces.own_lengths(
            entries.ids, entries.planned, whole_sizes, entries.first_tokens, entries.component_ids
        )

    def _entries_of(self, bins: Bins) -> _Entries:
        """Returns the entries of bins, with the sources that this thread may use."""
        components = None
        if bins.component_ids is not None:
            # One component a bin -> one an entry: [4, 7] with bin_ends [2, 5] -> [4, 4, 7, 7, 7]
            components = bins.component_ids.repeat(np.diff(bins.bin_ends, prepend=0))
        ids, planned = bins.ids.astype(np.int64), bins.lengths.astype(np.int64)
        first_tokens = None if bins.first_tokens is None else bins.first_tokens.astype(np.int64)
        if self._shares_prefixes and first_tokens is not None:  # an entry is sent from token 0, with its prefix
            planned, first_tokens = planned + first_tokens, None
        tokens, loss_mask = self._sources()
        return _Entries(
            tokens=tokens.of_sequences(components),
            loss_mask=None if loss_mask is None else loss_mask.of_sequences(components),
            ids=ids,
            planned=planned,
            first_tokens=first_tokens,
            component_ids=components,
        )

    def _sources(self) -> tuple[TokenSource, TokenSource | None]:
        """Returns the sources that this thread may use: the shared ones if they decode nothing, else its copies."""
        if self.knows_lengths and (self._loss_mask is None or self._loss_mask.knows_lengths):
            return self._tokens, self._loss_mask
        if self._copies.tokens_and_mask is None:
            mask_copy = None if self._loss_mask is None else self._loss_mask.copy()
            self._copies.tokens_and_mask = (self._tokens.copy(), mask_copy)
        return self._copies.tokens_and_mask

    def _check_files(self) -> None:
        """Raises a ValueError if a mapped file has changed: what was read may be of either content."""
        for path, stamp in self._files.items():
            if not stamp.holds(path):
                raise ValueError("its corpus was changed while it was served")


def _as_mask(values: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Returns which of a loss mask's values are 1; raises a ValueError if one is neither 0 nor 1."""
    if values.min(initial=0) < 0 or values.max(initial=0) > 1:
        raise ValueError("the loss mask holds other values than 0 and 1")
    return values == 1


def _with_replacements(
    tokens: NDArray[np.integer], lengths: NDArray[np.int64], redacted: Redacted
) -> NDArray[np.int64]:
    """Returns tokens in which each redacted entry that is not only masked has its replacement for every token.

    Args:
        tokens: tokens of all entries, end to end: [T].
        lengths: number of tokens of each entry: int64 [S].
        redacted: the redacted entries, with the token that replaces theirs, or MASKED.
    """
    replaced = tokens.astype(np.int64)  # a copy, which can hold any replacement
    ends = np.cumsum(lengths)
    for entry, token in zip(redacted.entries.tolist(), redacted.tokens.tolist(), strict=True):
        if token != MASKED:
            replaced[ends[entry] - lengths[entry] : ends[entry]] = token
    return replaced


def _narrowed(tokens: NDArray[Any]) -> NDArray[np.unsignedinteger]:
    """Returns tokens as uint16 if all fit, otherwise as uint32; raises a ValueError if one is no token id."""
    if tokens.dtype == np.uint16:
        return tokens
    smallest, largest = tokens.min(initial=0), tokens.max(initial=0)
    if smallest < 0 or largest > _LARGEST_TOKEN:
        raise ValueError(f"its corpus holds {smallest if smallest < 0 else largest}, and token ids are in [0, 2^31)")
    return tokens.astype(np.uint16 if largest < 1 << 16 else np.uint32)


class _PlanFacts:
    """The facts of a dataset that `PieceRule.of` reads, under the names of the Dataset message."""

    def __init__(self, dataset: Dataset) -> None:
        options = dataset.manifest.options
        self.max_seq_len, self.align, self.extra_tokens = options.max_seq_len, options.align, options.extra_tokens
        self.over_length, self.keep = options.over_length, options.keep
        components = dataset.datasets if isinstance(dataset, MixtureDataset) else ()
        self.components: Sequence[Any] = [each.manifest.options for each in components]
