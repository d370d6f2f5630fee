"""`MixtureSource`: tokens of a mixture, in which each sequence comes from the source of its component.

Owns choosing that source for each sequence of a block. Leaves reading tokens to the components' sources, and the loss
mask of a component that has none to `every_token`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from packhorse.tokens.base import Gather, TokenSource, TokenSourceError
from packhorse.tokens.every_token import EveryToken
from packhorse.types import Component


class _CombinedSources(TokenSource):
    """What is known of the tokens of several sources together."""

    def __init__(self, combined: Sequence[TokenSource]) -> None:
        self._combined = combined

    @property
    def knows_lengths(self) -> bool:
        """Whether all sources know lengths without reading tokens."""
        return all(source.knows_lengths for source in self._combined)

    @property
    def token_dtype(self) -> np.dtype[Any] | None:
        """A type that holds the tokens of all sources; None if a source does not know its type, or there is none."""
        known = [source.token_dtype for source in self._combined if source.token_dtype is not None]
        return np.result_type(*known) if len(known) == len(self._combined) > 0 else None

    @property
    def may_be_out_of_range(self) -> bool:
        """Whether the tokens of any source may be out of range."""
        return any(source.may_be_out_of_range for source in self._combined)


class MixtureSource(_CombinedSources):
    """Sources by the names of a mixture's components: `tokens={"web": …, "code": …}`.

    An id does not identify a sequence of a mixture, since two components may have the same id. So `of_sequences`
    returns a source that knows the component of each sequence of a block.

    Example:
        >>> from packhorse.tokens import IndexableSource
        >>> source = MixtureSource({"web": IndexableSource([[7, 8]]), "code": IndexableSource([[9]])})
        >>> source = source.for_components([Component(name="web"), Component(name="code")])
        >>> source.of_sequences(np.array([1, 0])).lengths(np.array([0, 0])).tolist()  # both have the id 0
        [1, 2]

    Args:
        sources: component → source; also for components of later stages.
    """

    def __init__(self, sources: Mapping[str, TokenSource]) -> None:
        self._by_name = dict(sources)
        super().__init__(list(self._by_name.values()))
        self._by_component_id: list[TokenSource] = []  # component id → source; empty until `for_components`

    @property
    def sources(self) -> Mapping[str, TokenSource]:
        """Component → source."""
        return self._by_name

    @property
    def where(self) -> str:
        """The sources of its components, for messages."""
        return ", ".join(f"{name}: {source.where}" for name, source in self._by_name.items())

    def for_ids(self, id_column: str) -> NoReturn:
        """Raises a TokenSourceError: this is called for a dataset that is not a mixture, and it needs one source."""
        raise TokenSourceError(
            f"tokens are given by component ({', '.join(self._by_name)}), but this dataset is not a mixture; give one "
            "source"
        )

    def for_components(self, components: Sequence[Component]) -> "MixtureSource":
        """Returns the source for a mixture with these components, in the order of their ids.

        Raises:
            TokenSourceError: a component has no source.
        """
        missing = [component.name for component in components if component.name not in self._by_name]
        if missing:
            raise TokenSourceError(
                f"the mixture's {', '.join(missing)} {'has' if len(missing) == 1 else 'have'} no source of tokens; "
                f"given are {', '.join(self._by_name)}"
            )
        ready_by_name = {each.name: self._by_name[each.name].for_ids(each.id_column) for each in components}
        ready = MixtureSource({**self._by_name, **ready_by_name})
        ready._by_component_id = list(ready_by_name.values())
        return ready

    def as_mask_of(self, tokens: TokenSource) -> "MixtureSource":
        """Returns the loss mask of `tokens`: the masks of this source, and ones for components without a mask.

        Raises:
            TokenSourceError: a mask has no tokens, or tokens are not given by component.
        """
        if not isinstance(tokens, MixtureSource):
            raise TokenSourceError("the loss mask is given by component, but tokens are not; give both by component")
        if unknown := [name for name in self._by_name if name not in tokens._by_name]:
            raise TokenSourceError(
                f"the loss mask is of {', '.join(unknown)}, for which there are no tokens; there are "
                f"{', '.join(tokens._by_name)}"
            )
        every_token = {name: EveryToken(source) for name, source in tokens._by_name.items()}
        return MixtureSource(every_token | self._by_name)

    def of_sequences(self, component_ids: NDArray[np.integer] | None) -> TokenSource:
        """Returns the source of a block's sequences."""
        if component_ids is None:
            raise TokenSourceError("tokens are given by component, but these bins are not a mixture's; give one source")
        return _BlockSource(self._by_component_id, component_ids)

    def read(self, sequence_id: int, start: int = 0, length: int | None = None) -> NDArray[np.integer]:
        """Raises a TokenSourceError: an id does not identify a sequence without its component; see `of_component`."""
        raise TokenSourceError(
            f"sequence {sequence_id}: several components may have this id; read from of_component(component_id)"
        )

    def of_component(self, component_id: int) -> TokenSource:
        """Returns one component's source."""
        return self._by_component_id[component_id]


class _OfComponent(NamedTuple):
    """The sequences of one component in a block."""

    source: TokenSource
    indices: NDArray[np.int64]
    """Indices of the sequences in the block, ascending: int64 [n]."""


class _BlockSource(_CombinedSources):
    """Tokens of the S sequences of one block, asked for in the block's order; `component_ids` are integers [S]."""

    def __init__(self, sources: Sequence[TokenSource], component_ids: NDArray[np.integer]) -> None:
        self._of_components = [
            _OfComponent(sources[component], np.flatnonzero(component_ids == component))
            for component in np.unique(component_ids)
        ]
        super().__init__([each.source for each in self._of_components])

    @property
    def where(self) -> str:
        """The sources of its components, for messages."""
        return ", ".join(source.where for source in self._combined)

    def read(self, sequence_id: int, start: int = 0, length: int | None = None) -> NoReturn:
        """Raises a TokenSourceError: an id does not identify a sequence without its component."""
        raise TokenSourceError(f"sequence {sequence_id}: several components may have this id")

    def lengths(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the lengths of the block's sequences: int64 [S]."""
        lengths = np.empty(len(ids), dtype=np.int64)
        for source, indices in self._of_components:
            lengths[indices] = source.lengths(ids[indices])
        return lengths

    def gather_from(
        self,
        ids: NDArray[np.int64],
        lengths: NDArray[np.integer],
        *,
        first_tokens: NDArray[np.int64] | None = None,
        truncate: bool = False,
    ) -> Gather:
        """Returns a function that writes the block's sequences, some at a time; see `TokenSource.gather_from`."""
        writers = [
            source.gather_from(
                ids[indices],
                lengths[indices],
                first_tokens=None if first_tokens is None else first_tokens[indices],
                truncate=truncate,
            )
            for source, indices in self._of_components
        ]

        def gather(first: int, last: int, out: NDArray[np.integer], out_starts: NDArray[np.int64]) -> None:
            for (_, indices), write in zip(self._of_components, writers, strict=True):
                # They ascend, so a component's sequences among [first, last) are its [begin, end).
                begin, end = np.searchsorted(indices, (first, last)).tolist()
                if begin < end:
                    write(begin, end, out, out_starts[indices[begin:end] - first])

        return gather
