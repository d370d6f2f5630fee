"""Tokens of a mixture: each sequence's from the source of the component that it is of.

Owns which source that is, for the sequences of one block at a time; leaves the tokens to these sources.
"""

from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from packhorse.client.sources.base import Gather, TokenSource, TokenSourceError
from packhorse.types import Component


class MixtureSource(TokenSource):
    """Sources by the names of a mixture's components; what `tokens={"web": …, "code": …}` becomes.

    An id alone is no sequence of a mixture: two components may have the same. So tokens are asked of what
    `of_sequences` returns, which knows the component of each.

    Example:
        >>> from packhorse.client.sources import IndexableSource
        >>> source = MixtureSource({"web": IndexableSource([[7, 8]]), "code": IndexableSource([[9]])})
        >>> source = source.for_components([Component(name="web"), Component(name="code")])
        >>> source.of_sequences(np.array([1, 0])).lengths(np.array([0, 0])).tolist()  # both have the id 0
        [1, 2]

    Args:
        sources: component → source. One for a component that the mixture does not have is for one that a later stage
            brings.
    """

    def __init__(self, sources: Mapping[str, TokenSource]) -> None:
        self._sources = dict(sources)
        self._of_components: list[TokenSource] = []

    @property
    def where(self) -> str:
        """What its components read."""
        return ", ".join(f"{name}: {source.where}" for name, source in self._sources.items())

    @property
    def may_be_out_of_range(self) -> bool:
        """Whether the tokens of any component may be."""
        return any(source.may_be_out_of_range for source in self._sources.values())

    def for_ids(self, id_column: str) -> NoReturn:
        """Refuses a dataset that is no mixture.

        Raises:
            TokenSourceError: always.
        """
        raise TokenSourceError(
            f"tokens are given by component ({', '.join(self._sources)}), but this dataset is no mixture; give its "
            "source alone"
        )

    def for_components(self, components: Sequence[Component]) -> "MixtureSource":
        """Returns the source of a mixture with these components, which takes each one's ids.

        Raises:
            TokenSourceError: a component has no source; names those that are missing.
        """
        missing = [component.name for component in components if component.name not in self._sources]
        if missing:
            raise TokenSourceError(
                f"the mixture's {', '.join(missing)} {'has' if len(missing) == 1 else 'have'} no source of tokens; "
                f"given are {', '.join(self._sources)}"
            )
        own = {each.name: self._sources[each.name].for_ids(each.id_column) for each in components}
        ready = MixtureSource({**self._sources, **own})
        ready._of_components = list(own.values())
        return ready

    def as_mask_of(self, tokens: TokenSource) -> "MixtureSource":
        """Returns this loss mask with one for every component that has tokens: ones where it has none.

        Raises:
            TokenSourceError: it is of a component that has no tokens, or tokens are not given by component.
        """
        if not isinstance(tokens, MixtureSource):
            raise TokenSourceError("the loss mask is given by component, but tokens are not; give both alike")
        if unknown := [name for name in self._sources if name not in tokens._sources]:
            raise TokenSourceError(
                f"the loss mask is of {', '.join(unknown)}, for which there are no tokens; there are "
                f"{', '.join(tokens._sources)}"
            )
        masks = {name: self._sources.get(name) or EveryToken(source) for name, source in tokens._sources.items()}
        return MixtureSource(masks)

    def of_sequences(self, component_ids: NDArray[np.integer] | None) -> TokenSource:
        """Returns the source of a block's sequences, of which it knows the components."""
        if component_ids is None:
            raise TokenSourceError("these bins are of no mixture, but tokens are given by component")
        return _OfSequences(self._of_components, component_ids)

    def read(self, sequence_id: int, start: int = 0, length: int | None = None) -> NDArray[np.integer]:
        """Refuses an id without its component; see `of_component`."""
        raise TokenSourceError(f"sequence {sequence_id}: its component is missing, and an id alone may be several's")

    def of_component(self, component_id: int) -> TokenSource:
        """Returns one component's source."""
        return self._of_components[component_id]


class _OfSequences(TokenSource):
    """Tokens of a block's sequences, asked for in the block's order.

    Args:
        sources: of the components.
        component_ids: which of them each sequence is of: integers [S].
    """

    def __init__(self, sources: Sequence[TokenSource], component_ids: NDArray[np.integer]) -> None:
        self._parts = [
            (sources[number], np.flatnonzero(component_ids == number)) for number in np.unique(component_ids)
        ]

    @property
    def where(self) -> str:
        """What its components read."""
        return ", ".join(source.where for source, _ in self._parts)

    @property
    def is_mapped(self) -> bool:
        """Whether all sources are."""
        return all(source.is_mapped for source, _ in self._parts)

    @property
    def may_be_out_of_range(self) -> bool:
        """Whether those of any source may be."""
        return any(source.may_be_out_of_range for source, _ in self._parts)

    def read(self, sequence_id: int, start: int = 0, length: int | None = None) -> NoReturn:
        """Refuses an id without its index in the block."""
        raise TokenSourceError(f"sequence {sequence_id}: its component is missing, and an id alone may be several's")

    def lengths(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns whole sequences' lengths in tokens: int64 [S], of the block's ids."""
        lengths = np.empty(len(ids), dtype=np.int64)
        for source, where in self._parts:
            lengths[where] = source.lengths(ids[where])
        return lengths

    def gather_from(
        self,
        ids: NDArray[np.int64],
        lengths: NDArray[np.integer],
        *,
        first_tokens: NDArray[np.int64] | None = None,
        truncate: bool = False,
    ) -> Gather:
        """Returns what writes the block's sequences, some at a time."""
        parts = [
            (
                where,
                source.gather_from(
                    ids[where],
                    lengths[where],
                    first_tokens=None if first_tokens is None else first_tokens[where],
                    truncate=truncate,
                ),
            )
            for source, where in self._parts
        ]

        def gather(first: int, last: int, out: NDArray[np.integer], out_starts: NDArray[np.int64]) -> None:
            for where, write in parts:
                begin, end = np.searchsorted(where, (first, last)).tolist()
                if begin < end:
                    write(begin, end, out, out_starts[where[begin:end] - first])

        return gather


class EveryToken(TokenSource):
    """The loss mask of a component that has none: 1 for each token.

    Args:
        tokens: of the component.
    """

    def __init__(self, tokens: TokenSource) -> None:
        self._tokens = tokens

    @property
    def is_mapped(self) -> bool:
        """Whether the tokens are."""
        return self._tokens.is_mapped

    def for_ids(self, id_column: str) -> "EveryToken":
        """Returns the mask of the source that takes these ids."""
        return EveryToken(self._tokens.for_ids(id_column))

    def read(self, sequence_id: int, start: int = 0, length: int | None = None) -> NDArray[np.integer]:
        """Returns as many ones as there are tokens."""
        return np.ones(len(self._tokens.read(sequence_id, start, length)), dtype=np.uint8)

    def lengths(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the lengths of the tokens."""
        return self._tokens.lengths(ids)

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
        """Writes ones; the tokens' own `gather` checks lengths."""
        for start, length in zip(out_starts.tolist(), lengths.tolist(), strict=True):
            out[start : start + length] = 1
