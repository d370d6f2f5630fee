"""Takedowns in force: the redactions and skips of one dataset or mixture, applied to bins.

Owns finding the redacted sequences of bins, and combining a mixture's file with its components' files. Leaves the
fields of files to `takedown_file`, and leaving positions out to `packhorse.epoch`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset.digest import fingerprint
from packhorse.dataset.files.takedown_file import Redaction, SkipEntry, TakedownError, TakedownFile
from packhorse.epoch import Bins, PoolArray
from packhorse.topology import ADDED, Skips

MASKED = -1
"""A value of `Redacted.tokens`: the sequence keeps its tokens, and is masked from the loss."""

_UNTOUCHED = -2
"""A value used while redactions are applied: the sequence is not redacted."""

_NO_SKIPS = Skips()

_ENTRIES_PER_ID, _LEAST_BITS, _MOST_BITS = 16, 12, 24
"""Size of the table `_IndexedRedactions.may_be_named`: entries for each named id, and bounds of
the size as powers of 2."""


@dataclass(frozen=True, slots=True, eq=False)
class Redacted:
    """Which sequences of some bins are redacted."""

    entries: NDArray[np.int64]
    """Indices of the redacted sequences in the bins' `ids`: int64 [n], ascending."""
    tokens: NDArray[np.int64]
    """For each of them, the token that replaces all of its tokens, or `MASKED` if it keeps them: int64 [n]."""


@dataclass(frozen=True, slots=True, eq=False)
class _IndexedRedactions:
    """Redactions of one dataset, and all ids that they name."""

    redactions: tuple[Redaction, ...]
    """The redactions, in the order in which they apply: the later one wins."""
    ids: NDArray[np.int64]
    """All ids that the redactions name: int64 [n], ascending, distinct."""
    may_be_named: NDArray[np.bool_]
    """For each value of an id's lowest bits, whether any named id has it: bool [a power of 2]. One look rules out most
    sequences, which are not redacted, without a search in `ids`."""

    @classmethod
    def of(cls, redactions: tuple[Redaction, ...]) -> "_IndexedRedactions":
        """Collects the ids of redactions of one dataset."""
        ids = np.unique(np.concatenate([redaction.ids for redaction in redactions]))
        num_bits = min(max((_ENTRIES_PER_ID * len(ids)).bit_length(), _LEAST_BITS), _MOST_BITS)
        may_be_named = np.zeros(1 << num_bits, np.bool_)
        may_be_named[ids & (len(may_be_named) - 1)] = True
        return cls(redactions, ids, may_be_named)

    def find(self, ids: PoolArray) -> NDArray[np.int64]:
        """Returns the indices of the named ones among some ids, ascending: int64 [k] for ids [n]."""
        # The mask has the type of the ids, so that NumPy does not convert them all.
        likely = np.flatnonzero(self.may_be_named[ids & ids.dtype.type(len(self.may_be_named) - 1)])
        return likely[_indices_in(ids[likely].astype(np.int64, copy=False), self.ids)]

    def tokens_of(
        self, ids: NDArray[np.int64], positions: NDArray[np.int64], *, epoch: int, seed: int | None, num_bins: int
    ) -> NDArray[np.int64]:
        """Returns `Redacted.tokens` of named sequences, int64 [n]; `_UNTOUCHED` for one that is left as it is.

        `positions` are those of the sequences' bins in the whole epoch; the rest is as in `Takedown.redacted`.
        """
        tokens = np.full(len(ids), _UNTOUCHED)
        for redaction in self.redactions:
            applies = np.zeros(len(ids), dtype=np.bool_)
            applies[_indices_in(ids, redaction.ids)] = True
            if seed is not None and redaction.seed == seed:
                # `from_position` counts over all epochs of the run, and the positions are those of one.
                applies &= positions >= redaction.from_position - epoch * num_bins
            tokens[applies] = MASKED if redaction.token is None else redaction.token
        return tokens


@dataclass(frozen=True, eq=False)
class Takedown:
    r"""The redactions and skips of one dataset, or of one mixture and its components.

    Example:
        >>> file = TakedownFile.parse('[[redact]]\nids = [9]\ntoken = 0', "web.takedown.toml")
        >>> web = Takedown.of_dataset(file)
        >>> lengths, ends, positions = np.array([5, 3]), np.array([2]), np.array([0])
        >>> bins = Bins(ids=np.array([7, 9]), lengths=lengths, bin_ends=ends, positions=positions)
        >>> redacted = web.redacted(bins, epoch=0, seed=1, num_bins=1)
        >>> redacted.entries.tolist(), redacted.tokens.tolist()
        ([1], [0])
    """

    file: TakedownFile = field(default_factory=TakedownFile)
    """The file of the dataset or mixture itself. Its skips are positions in the epochs of that dataset or mixture."""
    redactions: tuple[Redaction, ...] = ()
    """Redactions that apply: a mixture's components' first, then its own, each with its component."""
    digests: tuple[str, ...] = ()
    """A digest for each redaction, which covers the redactions before it in its file too (`TakedownFile.chain`)."""
    _indexed: Mapping[int, _IndexedRedactions] = field(default_factory=dict)
    """Number of a component (0 for a dataset) → its redactions; without components that have no redaction."""

    @classmethod
    def of_dataset(cls, file: TakedownFile) -> "Takedown":
        """Returns the takedown of a dataset with a file.

        Raises:
            TakedownError: a redaction names a component.
        """
        for number, redaction in enumerate(file.redactions):
            if redaction.component:
                raise TakedownError(
                    f"redact[{number}].component is {redaction.component!r}, but this is not a mixture; leave it out"
                )
        return cls._of(file, file.redactions, digests=file.chain, component_names=[""])

    @classmethod
    def of_mixture(cls, file: TakedownFile, components: Mapping[str, TakedownFile]) -> "Takedown":
        """Returns the takedown of a mixture, from its own file and its components' files.

        A component's redactions apply in the mixture from the beginning of a run: the `from_position` in the
        component's file counts positions of runs on that component only. Its skips do not apply in the mixture, for the
        same reason.

        Args:
            file: the content of the mixture's file.
            components: component → the content of its file, in the mixture's order.

        Raises:
            TakedownError: a redaction of `file` names none of the components.
        """
        for number, redaction in enumerate(file.redactions):
            if redaction.component not in components:
                raise TakedownError(
                    f"redact[{number}].component must be one of {', '.join(components)}, got {redaction.component!r}: "
                    "ids are of one of a mixture's components"
                )
        of_components = [
            replace(redaction, component=name, seed=None, from_position=0)
            for name, own in components.items()
            for redaction in own.redactions
        ]
        digests_of_components = [digest for own in components.values() for digest in own.chain]
        return cls._of(
            file,
            (*of_components, *file.redactions),
            digests=(*digests_of_components, *file.chain),
            component_names=list(components),
        )

    @classmethod
    def _of(
        cls,
        file: TakedownFile,
        redactions: Sequence[Redaction],
        *,
        digests: Sequence[str],
        component_names: Sequence[str],
    ) -> "Takedown":
        """Returns a takedown with an index for each component; a dataset has one component, without a name."""
        indexed = {}
        for number, name in enumerate(component_names):
            own = tuple(redaction for redaction in redactions if redaction.component == name and len(redaction.ids))
            if own:
                indexed[number] = _IndexedRedactions.of(own)
        return cls(file, tuple(redactions), tuple(digests), indexed)

    @property
    def digest(self) -> str:
        """A digest of all redactions; empty if there are none."""
        return fingerprint(self.digests) if self.digests else ""

    def __bool__(self) -> bool:
        """Returns whether anything is taken away."""
        return bool(self.redactions or self.file.skips)

    @property
    def skips(self) -> tuple[SkipEntry, ...]:
        """The skips of the dataset's or mixture's own file."""
        return self.file.skips

    def skips_of(self, epoch: int, seed: int) -> Skips:
        """Returns the positions that an epoch of a run leaves out."""
        return self.file.skips_of(epoch, seed)

    def redacted(
        self, bins: Bins, *, epoch: int, seed: int | None, num_bins: int, skips: Skips = _NO_SKIPS
    ) -> Redacted | None:
        """Returns the redacted sequences of some bins; None if there are none.

        Args:
            bins: bins of one epoch; of a mixture, with `component_ids`.
            epoch: number of the epoch, 0-based.
            seed: seed of the run; None if the positions are not those of a run.
            num_bins: bins in the whole epoch.
            skips: positions that the epoch leaves out; the bins' positions are numbered without them.
        """
        if not self._indexed:
            return None
        found: list[Redacted] = []
        sizes = bins.sizes()
        for number, indexed in self._indexed.items():
            # The named sequences, as indices in `bins.ids`.
            if bins.component_ids is None:
                named = indexed.find(bins.ids)
            else:
                of_component = np.flatnonzero(np.repeat(bins.component_ids == number, sizes))
                named = of_component[indexed.find(bins.ids[of_component])]
            if not len(named):
                continue
            bin_numbers = np.searchsorted(bins.bin_ends, named, side="right")
            positions = _whole_positions(bins.positions[bin_numbers], num_bins, skips)
            ids = bins.ids[named].astype(np.int64)
            tokens = indexed.tokens_of(ids, positions, epoch=epoch, seed=seed, num_bins=num_bins)
            touched = tokens != _UNTOUCHED
            if touched.any():
                found.append(Redacted(entries=named[touched], tokens=tokens[touched]))
        if not found:
            return None
        entries = np.concatenate([redacted.entries for redacted in found])
        tokens = np.concatenate([redacted.tokens for redacted in found])
        order = np.argsort(entries)  # components' bins alternate
        return Redacted(entries=entries[order], tokens=tokens[order])


def _indices_in(ids: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the indices of the ids that are among `wanted`, which is ascending and not empty."""
    at = np.searchsorted(wanted, ids)
    at[at == len(wanted)] = 0  # larger than all wanted ones, so it differs from the first one too
    return np.flatnonzero(wanted[at] == ids)


def _whole_positions(positions: NDArray[np.int64], num_bins: int, skips: Skips) -> NDArray[np.int64]:
    """Turns positions that were numbered without the skipped ones into positions of the whole epoch.

    Bins that the remainder policy added get the epoch's last position, whatever the skips make of theirs.
    """
    whole = positions.copy()
    # A gap is the number of the first position behind a range, counted without the skipped ones: with [2, 5) left out,
    # position 5 of the epoch is numbered 2.
    for (first, end), gap in zip(skips.ranges, skips.gaps(), strict=True):
        whole[positions >= gap] += end - first
    whole[positions == ADDED] = num_bins - 1
    return whole
