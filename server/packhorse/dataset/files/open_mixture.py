"""A mixture of prepared datasets, open: its file, with the datasets that it names.

Owns the way from the file to epochs: components, a cache of runs, the positions at which stages end, and facts of all
components together. Leaves the file's fields to `mixture_file`, the digest's form to `mixture_digest`, and which bins a
mixture draws to `packhorse.epoch`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property, lru_cache, partial
from math import ceil

from packhorse.dataset.facts import OverLengthLedger, ResourceRecord
from packhorse.dataset.files._kept_epochs import KeptEpochs
from packhorse.dataset.files.mixture_digest import mixture_digest
from packhorse.dataset.files.mixture_file import (
    MIXTURE_SUFFIX,
    ComponentEntry,
    MixtureError,
    MixtureFile,
    StageEntry,
    Unit,
)
from packhorse.dataset.keys import Keys
from packhorse.dataset.load import PreparedDataset
from packhorse.dataset.manifest import Manifest
from packhorse.dataset.plan_options import PlanOptions
from packhorse.epoch import (
    MAX_ROWS,
    Chain,
    Component,
    JoinedSource,
    Mixture,
    MixtureEpoch,
    Source,
    Stage,
    bin_shares,
    derive_key,
)

_MOST_MIXTURES = 4
"""The most runs whose `Mixture` is in a cache; making one again takes a millisecond."""


class MixtureDataset:
    r"""A mixture that is open: its file and its datasets. Safe to be used by many threads.

    Example:
        >>> from packhorse.dataset import open_prepared
        >>> file = MixtureFile.parse("epoch_bins = 8\n[[stages]]\nweights = {corpus = 1}", "some.mixture.toml")
        >>> mixture = MixtureDataset("some", file, [open_prepared("datasets/corpus")])
        >>> mixture.epoch(0, seed=1).bins(range(8)).component_ids.tolist()
        [0, 0, 0, 0, 0, 0, 0, 0]

    Args:
        name: the name by which it is served.
        file: the content of its file.
        datasets: the datasets of its components, in the order of `file.names`.

    Raises:
        MixtureError: the datasets do not go together, or cannot do what the file asks; the message says what to do.
    """

    def __init__(self, name: str, file: MixtureFile, datasets: Sequence[PreparedDataset]) -> None:
        self.name = name
        self.file = file
        self.datasets = tuple(datasets)
        self._mixtures = lru_cache(maxsize=_MOST_MIXTURES)(self._make_mixture)
        self._epochs = KeptEpochs(self._component_epoch)
        self.max_seq_len: int = file.max_seq_len or max(dataset.manifest.max_seq_len for dataset in datasets)
        """A bin's capacity in tokens."""
        try:
            _check_alike(self.datasets)
            self.rows_per_bin: tuple[int, ...] = tuple(_rows_per_bin(file, dataset) for dataset in datasets)
            """For each component, how many of its own bins are joined into one of the mixture."""
            self.component_bins: tuple[int, ...] = tuple(
                _quotient_up(dataset.manifest.num_bins, rows)
                for dataset, rows in zip(datasets, self.rows_per_bin, strict=True)
            )
            """For each component, how many bins of the mixture one of its epochs makes."""
            self._stages = self._stages_with_ends()
            of_any_seed = self.mixture(0)
        except ValueError as error:
            raise MixtureError(f"{name}{MIXTURE_SUFFIX}: {error}") from None
        self.num_bins: int = of_any_seed.num_bins
        """Bins of an epoch of the mixture."""
        self.chain: Chain = of_any_seed.chain
        """Where each stage begins, as a position of the run, with its digest."""

    def mixture(self, seed: int) -> Mixture:
        """Returns the mixture of a run."""
        return self._mixtures(seed)

    def epoch(self, number: int, seed: int) -> MixtureEpoch:
        """Returns one epoch of a run.

        Args:
            number: the epoch's number, in [0, 2^64).
            seed: the run's seed, in [0, 2^64).

        Raises:
            ValueError: a component would come to an epoch beyond 2^64.
        """
        epoch = self.mixture(seed).epoch(number)
        for taken, dataset, num_bins in zip(epoch.taken, self.datasets, self.component_bins, strict=True):
            last_epoch = taken.epoch + taken.num_bins // num_bins + 1
            if last_epoch >= 2**64:
                raise ValueError(f"epoch {number} is too large: {dataset.name} would be in its epoch {taken.epoch}")
        return epoch

    @property
    def settled_epoch(self) -> int:
        """The first epoch that is in the last stage from its beginning to its end."""
        last_begin, _ = self.chain[-1]
        return _quotient_up(last_begin, self.num_bins)

    @property
    def max_sequences_per_bin(self) -> int:
        """The most sequences in any bin."""
        return max(
            rows * dataset.max_sequences_per_bin for dataset, rows in zip(self.datasets, self.rows_per_bin, strict=True)
        )

    @property
    def has_groups(self) -> bool:
        """Whether a component's sequences are planned in groups."""
        return any(dataset.has_groups for dataset in self.datasets)

    @property
    def has_templates(self) -> bool:
        """Whether a bin's template gives its sequences' rooms, in all components."""
        return all(dataset.has_templates for dataset in self.datasets)

    @property
    def key_tables(self) -> dict[str, Keys | None]:
        """Component → its keys, in the order of components; None for a component without keys."""
        return {dataset.name: dataset.keys for dataset in self.datasets}

    @property
    def num_rooms(self) -> int:
        """The sum of the components' numbers of distinct rooms."""
        return sum(dataset.num_rooms for dataset in self.datasets)

    @property
    def shares(self) -> list[tuple[Fraction, ...]]:
        """For every stage, the share of the stage's bins that each component has."""
        components = self._components(0)
        return [bin_shares(stage, components, number) for number, stage in enumerate(self._stages)]

    @cached_property
    def manifest(self) -> Manifest:
        """A manifest of the first epoch: counts are averages over seeds, `over_length` is the sum over components."""
        manifests = [dataset.manifest for dataset in self.datasets]
        num_epochs = [
            Fraction(taken.num_bins, num_bins)
            for taken, num_bins in zip(self.mixture(0).epoch(0).taken, self.component_bins, strict=True)
        ]

        def total(count: Callable[[Manifest], int]) -> int:
            """Returns the sum of a count over components, each times its number of epochs in one of the mixture."""
            return round(sum(count(manifest) * times for manifest, times in zip(manifests, num_epochs, strict=True)))

        total_tokens, total_capacity = total(lambda manifest: manifest.total_tokens), self.num_bins * self.max_seq_len
        id_dtypes = {manifest.id_dtype for manifest in manifests}
        start_dtypes = {manifest.start_dtype for manifest in manifests} - {None}
        return Manifest(
            options=self._options(manifests),
            algorithm="mixture",
            num_sequences=total(lambda manifest: manifest.num_sequences),
            num_bins=self.num_bins,
            total_tokens=total_tokens,
            own_tokens=total(lambda manifest: manifest.own_tokens),
            total_capacity=total_capacity,
            efficiency=total_tokens / total_capacity,
            lower_bound=self.num_bins,
            num_rooms=self.num_rooms,
            num_templates=sum(manifest.num_templates for manifest in manifests),
            id_dtype="uint32" if id_dtypes == {"uint32"} else "int64",
            start_dtype=None if not start_dtypes else "uint32" if start_dtypes == {"uint32"} else "int64",
            ids_sum_a=0,
            ids_sum_b=0,
            over_length=sum((manifest.over_length for manifest in manifests), OverLengthLedger()),
            source=", ".join(dataset.name for dataset in self.datasets),
            id_column=None,
            plan_cut_off=any(manifest.plan_cut_off for manifest in manifests),
            resources=tuple(_resources_of(manifests)),
            checksums={},
            digest=mixture_digest(self.chain),
        )

    def _options(self, manifests: Sequence[Manifest]) -> PlanOptions:
        """Returns the components' common options, without a layout of bins over ranks if their layouts differ."""
        first = manifests[0].options
        is_layout_common = all(
            manifest.options.context == first.context and manifest.max_seq_len == self.max_seq_len
            for manifest in manifests
        )
        return PlanOptions(
            max_seq_len=self.max_seq_len,
            algorithm="mixture",
            over_length=first.over_length,
            keep=first.keep,
            align=first.align,
            extra_tokens=first.extra_tokens,
            tokens_per_rank=first.tokens_per_rank if is_layout_common else None,
            cost_cap_percent=first.cost_cap_percent if is_layout_common else None,
        )

    def _make_mixture(self, seed: int) -> Mixture:
        return Mixture(
            self._components(seed),
            self._stages,
            seed=seed,
            num_bins=self.file.epoch_bins,
            when_out=self.file.when_out,
            bins_per_draw=self.file.bins_per_draw,
        )

    def _components(self, seed: int) -> list[Component]:
        return [self._component(number, seed) for number in range(len(self.datasets))]

    def _component(self, number: int, seed: int) -> Component:
        """Describes a component, by its number, to `Mixture`, for a run with a seed."""
        dataset, rows, entry = self.datasets[number], self.rows_per_bin[number], self._entry(number)
        manifest, num_windows = dataset.manifest, entry.num_windows
        return Component(
            name=dataset.name,
            source_of=partial(self._epochs.get, number, seed),
            num_bins=self.component_bins[number],
            max_seq_len=rows * manifest.max_seq_len,
            max_sequences_per_bin=rows * dataset.max_sequences_per_bin,
            num_tokens=manifest.own_tokens,
            num_templates=manifest.num_templates if rows == 1 else 0,
            digest=manifest.digest
            + (f"-windows{num_windows}" if num_windows > 1 else "")
            + (f"-rows{rows}" if rows > 1 else ""),
            most_epochs=entry.most_epochs,
        )

    def _component_epoch(self, number: int, seed: int, epoch: int) -> Source:
        """Returns an epoch of a component, in bins of the mixture; its seed follows from the run's seed."""
        rows, own_seed = self.rows_per_bin[number], derive_key(seed, number, "component")
        own_bins = self.datasets[number].epoch(epoch, seed=own_seed, num_windows=self._entry(number).num_windows)
        return own_bins if rows == 1 else JoinedSource(own_bins, rows)

    def _entry(self, number: int) -> ComponentEntry:
        """Returns a component's table in the file, or the defaults."""
        return self.file.components.get(self.datasets[number].name, ComponentEntry())

    def _stages_with_ends(self) -> list[Stage]:
        """Returns the stages with each `until` turned into a position of the run."""
        components, stages = self._components(0), []
        position, tokens = 0, Fraction(0)  # the beginning of a stage, and the mean number of tokens before it
        tokens_of_bin = [
            Fraction(dataset.manifest.own_tokens, num_bins)
            for dataset, num_bins in zip(self.datasets, self.component_bins, strict=True)
        ]
        for number, entry in enumerate(self.file.stages):
            if entry.until is None:
                stages.append(Stage(entry.weights, None, entry.by))
                continue
            mean_tokens = _weighted_mean(
                tokens_of_bin, bin_shares(Stage(entry.weights, None, entry.by), components, number)
            )
            end = self._end_of(entry, position, tokens, mean_tokens)
            if end <= position:
                raise ValueError(
                    f"stages[{number}].until_{entry.until.unit} = {entry.until.count} is position {end} of the run, "
                    f"and the stage begins at {position}: ends count from the run's beginning; choose a later one"
                )
            stages.append(Stage(entry.weights, end, entry.by))
            position, tokens = end, tokens + (end - position) * mean_tokens
        return stages

    def _end_of(self, entry: StageEntry, position: int, tokens: Fraction, mean_tokens: Fraction) -> int:
        """Returns the position at which a stage ends.

        Args:
            entry: the stage.
            position: the position at which the stage begins.
            tokens: tokens of the run before that position, on average.
            mean_tokens: tokens in a bin of the stage, on average.
        """
        assert entry.until is not None
        if entry.until.unit is Unit.BINS:
            return entry.until.count
        per_draw = self.file.bins_per_draw
        if entry.until.unit is Unit.STEPS:
            return entry.until.count * (self.file.bins_per_step or 1)
        return position + ceil((entry.until.count - tokens) / mean_tokens / per_draw) * per_draw


def _quotient_up(number: int, divisor: int) -> int:
    """Returns the quotient of two integers, rounded up."""
    return -(-number // divisor)


def _weighted_mean(values: Sequence[Fraction], shares: Sequence[Fraction]) -> Fraction:
    """Returns the mean of values, weighted by shares that sum to 1."""
    return sum((share * value for share, value in zip(shares, values, strict=True)), Fraction(0))


def _rows_per_bin(file: MixtureFile, dataset: PreparedDataset) -> int:
    """Returns how many of a component's own bins are joined into one of the mixture; 1 for no joining."""
    own, joined = dataset.manifest.max_seq_len, file.max_seq_len
    if joined is None:
        return 1
    if own > joined:
        raise ValueError(
            f"{dataset.name} was prepared with max_seq_len {own}, and max_seq_len = {joined} in the mixture's "
            f"file has no room for that; write max_seq_len = {own} or more in a mixture of its own"
        )
    if joined % own or joined // own > MAX_ROWS:
        raise ValueError(
            f"{dataset.name} was prepared with max_seq_len {own}, and max_seq_len = {joined} in the mixture's "
            f"file must be a multiple of it, at most {MAX_ROWS} times as much; prepare it with a length that divides "
            f"{joined}, or leave max_seq_len out, and short bins leave room in long ones"
        )
    if joined > own and dataset.manifest.resources:
        raise ValueError(
            f"{dataset.name} has resources, and bins of max_seq_len {own} joined into one of {joined} would take "
            f"more than their caps: prepare it with max_seq_len {joined}"
        )
    return joined // own


def _resources_of(manifests: Sequence[Manifest]) -> Iterator[ResourceRecord]:
    """Yields each resource of the components once, with `total` summed and `most` taken over all components."""
    records_of: dict[str, list[ResourceRecord]] = {}
    for manifest in manifests:
        for resource in manifest.resources:
            records_of.setdefault(resource.name, []).append(resource)
    for records in records_of.values():
        total, most = sum(record.total for record in records), max(record.most for record in records)
        yield replace(records[0], total=total, most=most)


def _check_alike(datasets: Sequence[PreparedDataset]) -> None:
    """Raises a ValueError if components cannot share a batch: they differ in caps or rooms, or share prefixes."""
    first = datasets[0]
    caps: dict[str, tuple[str, int | None]] = {}  # resource → the first component that has it, and its cap there
    for dataset in datasets:
        for resource in dataset.manifest.resources:
            name, cap = caps.setdefault(resource.name, (dataset.name, resource.cap))
            if cap != resource.cap:
                raise ValueError(
                    f"{name} was prepared with a cap of {cap} on resource {resource.name!r}, and {dataset.name} with "
                    f"{resource.cap}: prepare them with the same cap"
                )
    for dataset in datasets:
        if dataset.manifest.shares_prefixes:
            raise ValueError(
                f"groups of {dataset.name} share prefixes, and a mixture's batches are no trees: prepare it without "
                "share_prefixes"
            )
        for option in ("align", "extra_tokens"):
            ours, theirs = getattr(dataset.manifest.options, option), getattr(first.manifest.options, option)
            if ours != theirs:
                raise ValueError(
                    f"{first.name} was prepared with {option} {theirs} and {dataset.name} with {ours}; prepare "
                    "them alike"
                )
