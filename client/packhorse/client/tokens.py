"""Token sources: from a sequence's id to its tokens.

Owns looking tokens up, checking them against the plan's lengths, and writing them where a batch wants them; leaves the
layouts of token files to `packhorse.formats` and the layout of a batch to `batch`.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from packhorse.formats import FlatTokens, MegatronTokens


class TokenSourceError(ValueError):
    """A source lacks a sequence, or holds it with another length or type than the plan expects."""


class TokenSource(ABC):
    """Where sequences' tokens come from.

    A subclass must define `read`; one that can check many ids at once also overrides `gather` and `lengths`. Instances
    cross into DataLoader workers: they must survive fork and, by pickling, spawn.
    """

    @abstractmethod
    def read(self, sequence_id: int, start: int = 0, length: int | None = None) -> NDArray[np.integer]:
        """Returns tokens [start, start + length) of one sequence, fewer where it ends earlier, as slicing does.

        Args:
            sequence_id: the sequence's id.
            start: the first token wanted, at least 0.
            length: number of tokens wanted; None for all from `start` on.

        Returns:
            Integers [<= length], a view where it can be; not to be written to.

        Raises:
            TokenSourceError: the source has no such id, or its tokens are not a 1-D array of integers.
        """

    def lengths(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns whole sequences' lengths in tokens: int64 [S], of ids int64 [S].

        Raises:
            TokenSourceError: an id is missing.
        """
        return np.array([len(self.read(sequence_id)) for sequence_id in ids.tolist()], dtype=np.int64)

    def gather(
        self,
        ids: NDArray[np.int64],
        lengths: NDArray[np.integer],
        out: NDArray[np.int64],
        out_starts: NDArray[np.int64],
        *,
        starts: NDArray[np.int64] | None = None,
        truncate: bool = False,
    ) -> None:
        """Writes many sequences, or pieces of sequences, into one buffer.

        Legend: S sequences.

        Args:
            ids: int64 [S].
            lengths: tokens to write of each, as planned: integers [S].
            out: flat buffer; only [out_starts[i], out_starts[i] + lengths[i]) are written.
            out_starts: where each goes in `out`: int64 [S].
            starts: first token of each piece: int64 [S]. None where every sequence is wanted whole; only then is its
                whole length compared with the plan's.
            truncate: a sequence may be longer than planned, and its first tokens are taken.

        Raises:
            TokenSourceError: an id is missing, or its sequence has another length than planned. `out` may then be
                partly written.
        """
        first_tokens = np.zeros_like(out_starts) if starts is None else starts
        is_whole = starts is None and not truncate
        for sequence_id, start, length, at in zip(
            ids.tolist(), first_tokens.tolist(), lengths.tolist(), out_starts.tolist(), strict=True
        ):
            tokens = self.read(sequence_id, start, None if is_whole else length)
            if len(tokens) != length:
                held = len(self.read(sequence_id))
                _refuse_length(sequence_id, length, held, start=start, is_whole=is_whole)
            out[at : at + length] = tokens


class _StoredSource(TokenSource):
    """A source over a memory-mapped token file, whose ids are the indices of its sequences.

    Forks share the map; a pickled source carries paths only, and maps the file itself when first used.
    """

    def __init__(self, tokens: MegatronTokens | FlatTokens) -> None:
        if tokens.dtype.kind not in "iu":
            raise TokenSourceError(f"{tokens.path}: holds {tokens.dtype}, but tokens are integers")
        self._tokens = tokens
        self._flat: NDArray[np.integer] | None = None

    def __len__(self) -> int:
        return len(self._tokens)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_flat": None}

    def read(self, sequence_id: int, start: int = 0, length: int | None = None) -> NDArray[np.integer]:
        flat = self._map()
        firsts, held = self._spans(np.array([sequence_id]))
        first, stop = int(firsts[0]) + start, int(firsts[0]) + int(held[0])
        return flat[first : stop if length is None else min(stop, first + length)]

    def lengths(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._spans(ids)[1].astype(np.int64)

    def gather(
        self,
        ids: NDArray[np.int64],
        lengths: NDArray[np.integer],
        out: NDArray[np.int64],
        out_starts: NDArray[np.int64],
        *,
        starts: NDArray[np.int64] | None = None,
        truncate: bool = False,
    ) -> None:
        flat = self._map()
        firsts, held = self._spans(ids)
        wanted_end = lengths if starts is None else starts + lengths
        is_whole = starts is None and not truncate
        is_wrong = held != wanted_end if is_whole else held < wanted_end
        if is_wrong.any():
            i = int(is_wrong.argmax())
            start = 0 if starts is None else int(starts[i])
            _refuse_length(int(ids[i]), int(lengths[i]), int(held[i]), start=start, is_whole=is_whole)
        if starts is not None:
            firsts = firsts + starts
        for first, length, at in zip(firsts.tolist(), lengths.tolist(), out_starts.tolist(), strict=True):
            out[at : at + length] = flat[first : first + length]

    def _spans(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.integer]]:
        """Where sequences lie: first token int64 [S], length [S].

        Raises:
            TokenSourceError: an id is not in the file.
        """
        is_missing = (ids < 0) | (ids >= len(self))
        if is_missing.any():
            raise TokenSourceError(
                f"{self._tokens.path}: no sequence with id {ids[is_missing.argmax()]}; it holds ids 0 to "
                f"{len(self) - 1}. Use the token file that the dataset was prepared from"
            )
        return self._known_spans(ids)

    @abstractmethod
    def _known_spans(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.integer]]:
        """As `_spans`, for ids that are in the file."""

    def _map(self) -> NDArray[np.integer]:
        """All tokens of the file, end to end.

        One view for all: a view of each sequence made anew costs more than copying its tokens.
        """
        if self._flat is None:
            if len(self):
                self._tokens.read(0, 0, 0)  # the formats' own check that the file is still the one first opened
            self._flat = _map_array(self._tokens.path, self._tokens.dtype)
        return self._flat


class MegatronSource(_StoredSource):
    """Tokens of a Megatron `.bin`/`.idx` pair, memory-mapped; a sequence's id is its index."""

    _tokens: MegatronTokens

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Opens the pair.

        Args:
            path: the `.idx`, the `.bin` or their common prefix.

        Raises:
            FileNotFoundError: one of the two files is missing.
            ValueError: the index is not valid or does not fit the `.bin`.
            TokenSourceError: the file holds floating-point numbers.
        """
        super().__init__(MegatronTokens(path))

    def _known_spans(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.integer]]:
        index = self._tokens.index
        return index.offsets[ids] // index.dtype.itemsize, index.lengths[ids]


class FlatSource(_StoredSource):
    """Tokens of a flat memmap with `.boundaries` beside it; a sequence's id is its index."""

    _tokens: FlatTokens

    def __init__(self, path: str | os.PathLike[str], dtype: DTypeLike | None = None) -> None:
        """Opens the file and its boundaries.

        Args:
            path: the token file; the boundaries lie at the same path with `.boundaries` appended.
            dtype: uint16 or uint32; None finds it from the size of the file and the last boundary.

        Raises:
            FileNotFoundError: one of the two files is missing.
            ValueError: the two do not fit each other or the dtype.
        """
        super().__init__(FlatTokens(path, dtype=dtype))
        self._ends: NDArray[np.integer] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_ends": None}

    def _known_spans(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.integer]]:
        # Not FlatTokens.lengths, which every worker process would compute and hold for the whole file.
        if self._ends is None:
            self._ends = _map_array(self._tokens.boundaries_path, np.dtype("<i8"))
        firsts = np.where(ids > 0, self._ends[ids - 1], 0)
        return firsts, self._ends[ids] - firsts


class IndexableSource(TokenSource):
    """Tokens of any object that answers `indexable[id]`: a list, a dict, a map-style dataset.

    An item is a 1-D tensor, array or list of integers or, with `key`, a mapping that holds one under that key. Whether
    it survives fork and spawn is up to the object.
    """

    def __init__(self, indexable: Any, *, key: str | None = None) -> None:
        """Wraps the object.

        Args:
            indexable: has `__getitem__`, taking ids.
            key: where the tokens are in each item, for items that are mappings (`"input_ids"`).

        Raises:
            TokenSourceError: the object cannot be indexed.
        """
        if not hasattr(indexable, "__getitem__"):
            raise TokenSourceError(
                f"a token source needs `source[id]`, which {type(indexable).__name__} does not offer; "
                "wrap it in an object with __getitem__, or subclass TokenSource"
            )
        self._indexable = indexable
        self._key = key

    def read(self, sequence_id: int, start: int = 0, length: int | None = None) -> NDArray[np.integer]:
        """Returns tokens of one sequence; see `TokenSource.read`."""
        # A list would take -1 for its last item.
        if sequence_id < 0 and not isinstance(self._indexable, Mapping):
            raise TokenSourceError(f"no sequence with id {sequence_id}: ids of an indexable source begin at 0")
        try:
            item = self._indexable[sequence_id]
        except (KeyError, IndexError) as error:
            raise TokenSourceError(
                f"{type(self._indexable).__name__} has no sequence with id {sequence_id}; "
                "use the data that the dataset was prepared from"
            ) from error
        if self._key is not None:
            try:
                item = item[self._key]
            except (KeyError, IndexError, TypeError) as error:
                raise TokenSourceError(f"sequence {sequence_id}: its item has no key {self._key!r}") from error
        elif isinstance(item, Mapping):
            raise TokenSourceError(
                f"sequence {sequence_id}: its item is a mapping with keys {sorted(map(str, item))}; "
                "name the one that holds the tokens with IndexableSource(..., key=...)"
            )
        tokens = _as_integers(sequence_id, item)
        return tokens[start:] if length is None else tokens[start : start + length]


def as_token_source(obj: Any) -> TokenSource:
    """Picks the source for what a user passes.

    Args:
        obj: a `TokenSource`, returned as it is; a path of a Megatron pair (`.idx`, `.bin` or their prefix), or of a
            flat file with `.boundaries` beside it; else anything with `__getitem__(id)`.

    Raises:
        TokenSourceError: nothing readable lies at the path, two layouts do, or the object cannot be indexed.
    """
    if isinstance(obj, TokenSource):
        return obj
    if isinstance(obj, str | os.PathLike):
        return _source_of_path(Path(obj))
    return IndexableSource(obj)


def _source_of_path(path: Path) -> TokenSource:
    if path.suffix == ".boundaries":
        return FlatSource(path)
    if path.suffix == ".idx":
        return MegatronSource(path)
    index = path.with_suffix(".idx") if path.suffix == ".bin" else path.with_name(path.name + ".idx")
    boundaries = path.with_name(path.name + ".boundaries")
    if index.exists() and boundaries.exists():
        raise TokenSourceError(
            f"{path}: both {index.name} and {boundaries.name} lie beside it; "
            "say which is meant with MegatronSource(path) or FlatSource(path)"
        )
    if boundaries.exists():
        return FlatSource(path)
    if index.exists():
        return MegatronSource(path)
    raise TokenSourceError(
        f"{path}: neither {index.name} (Megatron) nor {boundaries.name} (flat file with boundaries) lies beside it; "
        "pass the path of a token file with its index, a TokenSource, or an object with __getitem__(id)"
    )


def _map_array(path: Path, dtype: np.dtype[Any]) -> NDArray[np.integer]:
    # The system refuses to map an empty file; np.memmap itself is several times slower to slice than a plain array.
    return np.asarray(np.memmap(path, dtype, mode="r")) if path.stat().st_size else np.empty(0, dtype)


def _as_integers(sequence_id: int, item: Any) -> NDArray[np.integer]:
    tokens = item.detach().cpu().numpy() if isinstance(item, torch.Tensor) else np.asarray(item)
    if tokens.ndim != 1 or (tokens.dtype.kind not in "iu" and tokens.size):
        raise TokenSourceError(
            f"sequence {sequence_id}: tokens must be a 1-D list of integers, "
            f"got shape {list(tokens.shape)} of {tokens.dtype}"
        )
    return tokens


def _refuse_length(sequence_id: int, planned: int, held: int, *, start: int, is_whole: bool) -> NoReturn:
    wanted = f"{planned} tokens" if start == 0 else f"{planned} tokens from token {start} on"
    way_out = "use the token file that the dataset was prepared from"
    if is_whole and held > planned:
        way_out += ", or truncate=True where over-length sequences were truncated"
    raise TokenSourceError(f"sequence {sequence_id}: the plan says {wanted}, the source holds {held}; {way_out}")
