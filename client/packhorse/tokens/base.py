"""`TokenSource`: the contract of a token source, with the errors and the copying that all sources share.

Leaves base classes that handle many sequences at once to `mapped` and `fetched`, and where tokens lie to the other
modules of this package.
"""

import pickle
from abc import ABC, abstractmethod
from collections.abc import Sequence, Sized
from contextlib import suppress
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from packhorse.types import Component


class TokenSourceError(ValueError):
    """A source lacks a sequence, or holds it with an unexpected length or type."""


class Gather(Protocol):
    """The function that `gather_from` returns: it writes some of the sequences for which that was called."""

    def __call__(self, first: int, last: int, out: NDArray[np.integer], out_starts: NDArray[np.int64], /) -> None:
        """Writes sequences [first, last); `out` and `out_starts` are as in `TokenSource.gather`."""


class TokenSource(ABC):
    """Where sequences' tokens come from.

    A subclass must define `read`; one that can check many ids at once also overrides `gather` and `lengths`. Instances
    cross into DataLoader workers: they must survive fork and, by pickling, spawn.

    Example:
        >>> class Repeated(TokenSource):
        ...     def read(self, sequence_id, start=0, length=None):
        ...         tokens = np.full(3, sequence_id)  # three times the id: yours would come from a database
        ...         return tokens[start:] if length is None else tokens[start : start + length]
        >>> Repeated().lengths(np.array([7, 8])).tolist()
        [3, 3]
    """

    @abstractmethod
    def read(self, sequence_id: int, start: int = 0, length: int | None = None) -> NDArray[np.integer]:
        """Returns tokens [start, start + length) of one sequence, or fewer if it ends earlier.

        Args:
            sequence_id: the sequence's id.
            start: the first token, at least 0.
            length: number of tokens; None for all from `start` on.

        Returns:
            Integers [<= length], often a view; do not write to it.

        Raises:
            TokenSourceError: the source has no such id, or its tokens are not a 1-D array of integers.
        """

    @property
    def where(self) -> str:
        """What the source reads, for error messages: often a path."""
        return type(self).__name__

    @property
    def num_sequences(self) -> int | None:
        """Number of sequences; None if the source does not know."""
        return len(self) if isinstance(self, Sized) else None

    def __repr__(self) -> str:
        where = "" if self.where == type(self).__name__ else f" of {self.where}"
        count = "" if self.num_sequences is None else f": {self.num_sequences:,} sequences"
        return f"<{type(self).__name__}{where}{count}>"

    def origin(self, sequence_id: int) -> str:
        """Returns where a sequence is, e.g. "row 812 of corpus.bin"; empty if the source does not know.

        Raises:
            TokenSourceError: the source has no such id.
        """
        return ""

    @property
    def knows_lengths(self) -> bool:
        """Whether lengths are known without reading tokens."""
        return False

    @property
    def token_dtype(self) -> np.dtype[Any] | None:
        """The type in which tokens are stored; None if it is not known before they are read."""
        return None

    @property
    def mapped_files(self) -> Sequence[str]:
        """The files that are mapped into memory. The source does not notice when they change; a server has to look."""
        return ()

    def copy(self) -> "TokenSource":
        """Returns an independent copy that shares no memory with this source, for another thread or process."""
        copied: TokenSource = pickle.loads(pickle.dumps(self))
        return copied

    @property
    def may_be_out_of_range(self) -> bool:
        """Whether the stored type has values that are no token ids: below 0, or 2^31 and more."""
        return True

    def loss_mask_beside(self) -> "TokenSource | None":
        """Returns the loss mask that lies beside the tokens under its usual name; None if there is none.

        Raises:
            TokenSourceError: only one of the mask's two files is there, or permissions hide whether they are.
            ValueError: the mask is damaged.
        """
        return None

    def sign_of_mask(self) -> str:
        """Returns a sign, for a warning, that the tokens should have a mask although none lies beside them; or ""."""
        return ""

    def for_ids(self, id_column: str) -> "TokenSource":
        """Returns this source, or a similar one, that takes the ids of a dataset.

        A source of a table returns one that looks ids up in the column. By default a source takes ids as they are.

        Args:
            id_column: the column of the dataset's input that ids come from; empty if an id is a row number.

        Raises:
            TokenSourceError: ids come from a column, and this source only knows row numbers.
        """
        return self

    def for_components(self, components: Sequence[Component]) -> "TokenSource":
        """Raises a TokenSourceError: one source cannot distinguish a mixture's components. `MixtureSource` can."""
        names = ", ".join(f"{component.name!r}: …" for component in components)
        raise TokenSourceError(
            f"the dataset is a mixture; give tokens by component, {{{names}}}; components may share a source"
        )

    def of_sequences(self, component_ids: NDArray[np.integer] | None) -> "TokenSource":
        """Returns the source of a block's sequences: this source, unless it is a mixture's.

        Args:
            component_ids: the component of each sequence: integers [S]; None if there is no mixture.
        """
        return self

    def of_component(self, component_id: int) -> "TokenSource":
        """Returns the source of one of a mixture's components: this source, unless it is a mixture's."""
        return self

    def lengths(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the lengths of whole sequences: int64 [S], in tokens; raises TokenSourceError if an id is missing."""
        return np.array([len(self.read(sequence_id)) for sequence_id in ids.tolist()], dtype=np.int64)

    def gather(
        self,
        ids: NDArray[np.int64],
        lengths: NDArray[np.integer],
        out: NDArray[np.integer],
        out_starts: NDArray[np.int64],
        *,
        first_tokens: NDArray[np.int64] | None = None,
        truncate: bool = False,
    ) -> None:
        """Writes sequences, or pieces of sequences, into one buffer. Legend: S sequences.

        Args:
            ids: int64 [S].
            lengths: number of tokens to write of each sequence, as planned: integers [S].
            out: flat buffer of a type that holds every token; only [out_starts[i], out_starts[i] + lengths[i]) are
                written.
            out_starts: where each sequence begins in `out`: int64 [S].
            first_tokens: where each piece begins in its sequence: int64 [S]. None for whole sequences; only then their
                lengths are compared with the plan.
            truncate: whether a sequence may be longer than planned; its first tokens are taken.

        Raises:
            TokenSourceError: an id is missing, or its length is not the planned one. `out` may be partly written.
        """
        is_whole = first_tokens is None and not truncate
        first_tokens = np.zeros_like(out_starts) if first_tokens is None else first_tokens
        for sequence_id, start, length, at in zip(
            ids.tolist(), first_tokens.tolist(), lengths.tolist(), out_starts.tolist(), strict=True
        ):
            tokens = self.read(sequence_id, start, None if is_whole else length)
            if len(tokens) != length:
                held = len(self.read(sequence_id))
                refuse_length(sequence_id, length, held, start=start, is_whole=is_whole)
            out[at : at + length] = tokens

    def end_to_end(
        self,
        ids: NDArray[np.int64],
        lengths: NDArray[np.integer],
        *,
        first_tokens: NDArray[np.int64] | None = None,
        truncate: bool = False,
    ) -> NDArray[np.integer]:
        """Returns sequences, or pieces of sequences, one after the other: integers [sum of lengths].

        Arguments and errors are those of `gather`.
        """
        ends = np.cumsum(lengths, dtype=np.int64)
        values = np.empty(int(ends[-1]) if len(ends) else 0, np.int64)
        if len(ids):
            gather = self.gather_from(ids, lengths, first_tokens=first_tokens, truncate=truncate)
            gather(0, len(ids), values, ends - lengths)
        return values

    def gather_from(
        self,
        ids: NDArray[np.int64],
        lengths: NDArray[np.integer],
        *,
        first_tokens: NDArray[np.int64] | None = None,
        truncate: bool = False,
    ) -> Gather:
        """Begins to fetch a block's sequences, and returns a function that writes those of one batch at a time.

        Arguments are those of `gather`.
        """
        # An error is suppressed here and raised again by the batch that has the sequence, after those before it.
        with suppress(TokenSourceError):
            self._expect(ids)

        def gather(first: int, last: int, out: NDArray[np.integer], out_starts: NDArray[np.int64]) -> None:
            """Gathers sequences [first, last)."""
            some = slice(first, last)
            self.gather(
                ids[some],
                lengths[some],
                out,
                out_starts,
                first_tokens=None if first_tokens is None else first_tokens[some],
                truncate=truncate,
            )

        return gather

    def _expect(self, ids: NDArray[np.int64]) -> None:  # noqa: B027 - most sources have nothing to fetch
        """Begins to fetch sequences that will be asked for soon, in the order of `ids`."""


def refuse_length(sequence_id: int, planned: int, held: int, *, start: int, is_whole: bool) -> NoReturn:
    """Raises the TokenSourceError of a sequence, or of a piece that begins at `start`, that is not as long as planned.

    `held` is the length of the whole sequence in the source, `planned` the number of tokens that the plan needs of it.
    """
    wanted = f"{planned} tokens" if start == 0 else f"{planned} tokens from token {start} on"
    way_out = "use the token file that the dataset was prepared from"
    if is_whole and held > planned:
        way_out += ", or truncate=True where over-length sequences were truncated"
    raise TokenSourceError(f"sequence {sequence_id}: the plan says {wanted}, the source holds {held}; {way_out}")


def refuse_truncated() -> NoReturn:
    """Raises the TokenSourceError of data that is shorter than its index says."""
    raise TokenSourceError("the data ends within a sequence that it lists: it is truncated or corrupt")


def write_end_to_end(
    tokens: NDArray[np.integer], lengths: NDArray[np.integer], out: NDArray[np.integer], out_starts: NDArray[np.int64]
) -> None:
    """Copies sequences that lie end to end in `tokens` to where each begins in `out`.

    Sequences that lie end to end in `out` too are copied together.
    """
    out_ends = out_starts + lengths
    # A range of `out` ends, and another begins, wherever a sequence does not begin at the end of the one before it.
    breaks = (out_starts[1:] != out_ends[:-1]).nonzero()[0]
    begins = [*out_starts[:1].tolist(), *out_starts[breaks + 1].tolist()]
    ends = [*out_ends[breaks].tolist(), *out_ends[-1:].tolist()]
    if sum(ends) - sum(begins) != len(tokens):
        refuse_truncated()
    num_copied = 0
    for begin, end in zip(begins, ends, strict=True):
        stop = num_copied + end - begin
        out[begin:end] = tokens[num_copied:stop]
        num_copied = stop
