"""Opening a prepared folder; a damaged one is refused with the file and the reason.

Owns `PreparedDataset`, and every check that the files agree before a plan is served from them. Leaves comparing lengths
with the data to `verifying`, writing a folder to `output.write`, and seqpack's layout to `seqpack_layout`.
"""

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset.arrays import map_array
from packhorse.dataset.digest import dataset_digest
from packhorse.dataset.errors import PreparedDatasetError, short_path
from packhorse.dataset.files.mixture_file import MIXTURE_SUFFIX
from packhorse.dataset.json_files import parse_counts, parse_templates
from packhorse.dataset.keys import Keys
from packhorse.dataset.layout import (
    CLASSES,
    COUNTS,
    DATA_FILES,
    DROPPED_GROUPS,
    GROUPS,
    MANIFEST,
    MEMBER_ORDER,
    MEMBERS,
    OVER_LENGTH,
    POOLS,
    RESOURCES,
    SEQPACK_POOLS,
    STARTS,
    TEMPLATES,
    VERSIONS,
)
from packhorse.dataset.manifest import MOST_MANIFEST_BYTES, Manifest
from packhorse.dataset.output.replacing import aside_of
from packhorse.dataset.output.write import optional_files
from packhorse.dataset.plain_files import read_file, sha256_of
from packhorse.epoch import Budgets, EpochView, GroupedSource, Groups, PlanIndex, PoolArray, WindowedView
from packhorse.packing import Template
from packhorse.parameters import parameter

_Parsed = TypeVar("_Parsed")

_PAIR_BYTES = 64
"""The most bytes in JSON of a length with its count, or of a template's multiplicity and brackets."""
_LENGTH_BYTES = 12
"""The most bytes in JSON of a length in a template: at most ten digits, and a comma."""


@dataclass(frozen=True, eq=False)
class PreparedDataset:
    """A prepared folder, checked and open."""

    path: Path
    """The folder."""
    manifest: Manifest
    """The folder's manifest."""
    pool: PoolArray
    """Ids of all sequences, ascending by (room, id, first token), memory-mapped read-only: uint32 or int64
    [num_sequences]. In a grouped dataset the numbers of groups, ascending by (sum of rooms, number); with resources, by
    (class, number)."""
    plan: PlanIndex
    """The plan laid out for random access."""
    first_tokens: PoolArray | None = None
    """First token of each pool entry in its sequence, memory-mapped: uint32 or int64 [num_sequences]; None if all are
    0. In a grouped dataset None: `groups` has the first tokens."""
    groups: Groups | None = None
    """The groups that the plan packs, with their sequences; None if the plan packs sequences. With resources there are
    always groups, possibly of one sequence each."""
    keys: Keys | None = None
    """The sequences' keys; None if they have ids only."""

    @cached_property
    def name(self) -> str:
        """The name by which the dataset is served: the folder's; for an earlier version, its dataset's folder's."""
        if self.path.parent.name == VERSIONS:
            dataset_folder = self.path.parents[1]
            if (dataset_folder / MANIFEST).exists():  # else it is a folder `versions` of something else
                return dataset_folder.name
        return self.path.name

    @property
    def counts(self) -> Counter[int]:
        """Room in tokens → number of sequences; if the plan packs groups, sum of rooms → number of groups.

        Built at each call, because the plan takes far less memory.
        """
        return self.plan.as_counts()

    @property
    def templates(self) -> Counter[Template]:
        """Template → multiplicity, in canonical order. Built at each call, like `counts`."""
        return self.plan.as_templates()

    @property
    def max_sequences_per_bin(self) -> int:
        """The most sequences in any bin."""
        return self.groups.max_sequences_per_bin if self.groups else self.plan.max_sequences_per_bin

    @property
    def has_groups(self) -> bool:
        """Whether the user asked for groups; unlike `groups`, which are also there with resources."""
        return self.manifest.is_grouped

    @property
    def has_templates(self) -> bool:
        """Whether a bin's template gives its sequences' rooms. False if the plan packs groups or classes."""
        return self.groups is None

    @property
    def key_tables(self) -> dict[str, Keys | None]:
        """The keys under the name ""; a mixture has the same property, with a table for each component's name."""
        return {"": self.keys}

    @property
    def num_rooms(self) -> int:
        """Number of distinct rooms; with resources, of classes."""
        return len(self.plan.lengths)

    @property
    def ids(self) -> NDArray[np.integer]:
        """Ids of all sequences, in the order of the pool; in a grouped dataset, in the order of the groups' members."""
        return self.pool if self.groups is None else self.groups.members[:, 0]

    def epoch(self, number: int, seed: int, *, num_windows: int = 1) -> EpochView | WindowedView | GroupedSource:
        """Returns one epoch of a run.

        Args:
            number: the epoch's number, in [0, 2^64).
            seed: the run's seed, in [0, 2^64).
            num_windows: locality windows; 1 for the plain epoch.
        """
        view: EpochView | WindowedView
        if num_windows == 1:
            view = EpochView(self.plan, self.pool, seed=seed, epoch=number, first_tokens=self.first_tokens)
        else:
            view = WindowedView(
                self.plan,
                self.pool,
                seed=seed,
                epoch=number,
                num_windows=num_windows,
                first_tokens=self.first_tokens,
            )
        return view if self.groups is None else GroupedSource(view, self.groups)

    def check_pool(self) -> None:
        """Reads every array file whole and compares its checksum; raises a PreparedDatasetError if one differs."""
        _check_arrays(self.path, self.manifest)

    def over_length(self) -> NDArray[np.int64]:
        """Returns (id, length in tokens) of every sequence that was too long, ascending by id: int64 [n, 2]."""
        num_over = self.manifest.over_length.sequences
        if not num_over:
            return np.empty((0, 2), dtype=np.int64)
        return map_array(self.path / OVER_LENGTH, "int64", (num_over, 2))

    def dropped_groups(self) -> NDArray[np.int64]:
        """Returns the ids of groups that were too long and left out, ascending: int64 [n].

        Earlier releases, and groups that were formed by size, list none.
        """
        num_listed = self.manifest.groups.num_dropped_listed if self.manifest.groups else 0
        if not num_listed:
            return np.empty(0, dtype=np.int64)
        return map_array(self.path / DROPPED_GROUPS, "int64", (num_listed,))


def open_prepared(path: Path | str, *, check_pool: bool = True) -> PreparedDataset:
    """Opens and checks a prepared folder.

    Example:
        >>> dataset = open_prepared("datasets/corpus")
        >>> dataset.manifest.num_bins, dataset.counts, dataset.pool.tolist()
        (2, Counter({3: 2, 5: 2}), [1, 2, 0, 3])

    Args:
        path: the folder.
        check_pool: whether to read the array files whole and compare their checksums. If not, only their headers and
            sizes are checked, at a cost that does not grow with the number of sequences; `check_pool()` can be called
            later.

    Raises:
        PreparedDatasetError: a file is missing, truncated, altered, or inconsistent with the others.
    """
    folder = Path(path)
    check_folder(folder)
    manifest = _read_manifest(folder)
    counts, templates = _read_plan(folder, manifest)
    arrays = _map_arrays(folder, manifest)
    if check_pool:
        _check_arrays(folder, manifest)
    budgets = _read_budgets(folder, manifest)
    try:
        plan = PlanIndex.build(templates, counts, manifest.max_seq_len, budgets)
    except (ValueError, OverflowError) as error:
        raise PreparedDatasetError(f"{short_path(folder / TEMPLATES)} does not fit {COUNTS}: {error}") from None
    _check_facts(folder, manifest, plan, counts, templates)
    return PreparedDataset(
        path=folder,
        manifest=manifest,
        pool=arrays.pool,
        plan=plan,
        first_tokens=arrays.first_tokens,
        groups=arrays.groups,
        keys=arrays.keys,
    )


def check_folder(folder: Path) -> None:
    """Refuses a path that is not a folder, with a hint if it names a mixture, or a folder that a crash left renamed.

    Raises:
        PreparedDatasetError: the path is not a folder, or does not exist.
    """
    if folder.is_dir():
        return
    name = folder.name.removesuffix(MIXTURE_SUFFIX)
    if folder.with_name(f"{name}{MIXTURE_SUFFIX}").is_file():
        raise PreparedDatasetError(
            f"{name} is a mixture, a file that names prepared folders: give the folder of one component; `packhorse "
            f"mixture show {name} --target embedded:{folder.parent}` shows all of them"
        )
    if (aside := aside_of(folder.resolve())).is_dir():
        raise PreparedDatasetError(
            f"{folder.name} was being replaced when the machine went down, and has another name now: "
            f"`mv {aside.name} {folder.resolve().name}` there gives it its name back, and so does the next `packhorse "
            "prepare` that writes it"
        )
    raise PreparedDatasetError(f"{folder} is not a folder; `packhorse prepare` writes one")


def _read_manifest(folder: Path) -> Manifest:
    """Reads the manifest; refuses seqpack's layout, and a manifest that lists other files than it implies."""
    if (folder / SEQPACK_POOLS).is_dir():
        raise PreparedDatasetError(
            f"{folder.name} has seqpack's layout, which `packhorse.prepare.load_prepared` reads; to serve "
            "or inspect it, prepare it with " + parameter("format", "packhorse")
        )
    manifest = Manifest.parse(read_file(folder / MANIFEST, MOST_MANIFEST_BYTES), short_path(folder / MANIFEST))
    if set(manifest.checksums) != {*DATA_FILES, *optional_files(manifest)}:
        raise PreparedDatasetError(f"{short_path(folder / MANIFEST)} lists {sorted(manifest.checksums)}")
    return manifest


def _read_plan(folder: Path, manifest: Manifest) -> tuple[Counter[int], Counter[Template]]:
    """Reads the counts and the templates.

    Files that are too large for the manifest's numbers are refused unread. All templates together hold at most
    num_sequences lengths, since each template is used by at least one bin, and bins share no sequence.
    """
    counts_bytes = _PAIR_BYTES * (manifest.num_rooms + 1)  # 1 more for the outer brackets
    templates_bytes = _PAIR_BYTES * (manifest.num_templates + 1) + _LENGTH_BYTES * manifest.num_sequences
    counts = _read_json(folder / COUNTS, manifest, counts_bytes, parse_counts)
    return counts, _read_json(folder / TEMPLATES, manifest, templates_bytes, parse_templates)


def _read_json(path: Path, manifest: Manifest, most_bytes: int, parse: Callable[[bytes], _Parsed]) -> _Parsed:
    """Reads a JSON file of at most `most_bytes`, compares it with its checksum and parses it."""
    data = read_file(path, most_bytes)
    _check_checksum(path, manifest, hashlib.sha256(data).hexdigest())
    try:
        return parse(data)
    except ValueError as error:
        raise PreparedDatasetError(f"{short_path(path)} cannot be read: {error}") from None


class _Arrays(NamedTuple):
    """What a dataset keeps of its mapped array files; the fields are those of `PreparedDataset`."""

    pool: PoolArray
    first_tokens: PoolArray | None
    groups: Groups | None
    keys: Keys | None


def _map_arrays(folder: Path, manifest: Manifest) -> _Arrays:
    """Maps all array files, which checks their headers and sizes, also of files that are read only when asked for."""
    pool = map_array(folder / POOLS, *manifest.pool_shape)
    first_tokens = None
    if manifest.start_dtype:
        first_tokens = map_array(folder / STARTS, manifest.start_dtype, (manifest.num_sequences,))
    groups = _map_groups(folder, manifest, first_tokens)
    keys = Keys.mapped(folder, manifest.keys) if manifest.keys else None
    if manifest.over_length.sequences:  # mapped again by `PreparedDataset.over_length`
        map_array(folder / OVER_LENGTH, "int64", (manifest.over_length.sequences, 2))
    if manifest.groups is not None and manifest.groups.num_dropped_listed:  # again by `dropped_groups`
        map_array(folder / DROPPED_GROUPS, "int64", (manifest.groups.num_dropped_listed,))
    if groups is not None:
        first_tokens = None  # they are of members, not of the pool's groups, and `groups` has them
    return _Arrays(pool, first_tokens, groups, keys)


def _map_groups(folder: Path, manifest: Manifest, first_tokens: PoolArray | None) -> Groups | None:
    """Maps the files of groups; returns None if the dataset has no groups."""
    if manifest.groups is None:
        return None
    num_members = manifest.num_sequences
    table = map_array(folder / GROUPS, "int64", (manifest.groups.num_groups, 2))  # (id, end of its members)
    last_end = int(table[-1, 1])
    if last_end != num_members:
        raise PreparedDatasetError(
            f"{short_path(folder / GROUPS)} ends at member {last_end}, and {MANIFEST} states {num_members} sequences"
        )
    return Groups(
        table=table,
        members=map_array(folder / MEMBERS, "int64", (num_members, 2)),
        rooms=manifest.options.rooms,
        max_sequences_per_bin=manifest.groups.max_sequences_per_bin,
        resources=(
            map_array(folder / RESOURCES, "uint32", (num_members, len(manifest.resources)))
            if manifest.resources
            else None
        ),
        costs=tuple(resource.cost for resource in manifest.resources),
        are_named=manifest.is_grouped,
        first_tokens=first_tokens,
        shares_prefixes=manifest.shares_prefixes,
        order=None if manifest.groups.ids_ascend else map_array(folder / MEMBER_ORDER, "int64", (num_members,)),
    )


def _check_arrays(folder: Path, manifest: Manifest) -> None:
    for name in (POOLS, *optional_files(manifest)):
        _check_checksum(folder / name, manifest, sha256_of(folder / name))


def _check_checksum(path: Path, manifest: Manifest, actual: str) -> None:
    if actual != manifest.checksums[path.name]:
        raise PreparedDatasetError(
            f"{short_path(path)} does not match its checksum in {MANIFEST}: it was truncated or altered; restore it "
            "from a copy or prepare the dataset again"
        )


def _read_budgets(folder: Path, manifest: Manifest) -> Budgets | None:
    """Reads the sizes of classes, and a bin's capacities; returns None without resources."""
    if not manifest.resources:
        return None
    capacities = np.array(manifest.capacities, dtype=np.int64)
    sizes = map_array(folder / CLASSES, "int64", (manifest.num_rooms, len(capacities)))
    return Budgets(sizes=np.array(sizes), capacities=capacities)


def _check_facts(
    folder: Path, manifest: Manifest, plan: PlanIndex, counts: Counter[int], templates: Counter[Template]
) -> None:
    """Refuses a manifest that states other facts, or another digest, than follow from the files beside it."""
    digest = dataset_digest(counts, templates, manifest.options, manifest.checksums, manifest.resources)
    # A class has the size of its largest sequence; `rounding_tokens` is what that adds to the others.
    total_tokens = int(plan.rooms.astype(np.int64) @ plan.counts) - manifest.rounding_tokens
    num_planned = manifest.groups.num_groups if manifest.groups else manifest.num_sequences
    for what, stated, actual in (
        ("num_groups" if manifest.groups else "num_sequences", num_planned, plan.num_sequences),
        ("num_bins", manifest.num_bins, plan.num_bins),
        ("total_tokens", manifest.total_tokens, total_tokens),
        ("total_capacity", manifest.total_capacity, plan.num_bins * manifest.max_seq_len),
        ("num_rooms", manifest.num_rooms, len(counts)),
        ("num_templates", manifest.num_templates, len(templates)),
        ("digest", manifest.digest, digest),
    ):
        if stated != actual:
            raise PreparedDatasetError(
                f"{short_path(folder / MANIFEST)} states {what} {stated}, but the files beside it give {actual}"
            )
