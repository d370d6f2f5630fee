"""seqpack's folder layout: the same facts as ours, with one pool file for each length and no checksums.

seqpack is the library whose `load_prepared` users of this one may know. Owns reading and writing its layout, and our
`load_prepared`, which reads either layout. Our own is in `layout`, opened by `load` and written by `output.write`.
"""

import json
import os
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset.arrays import create_array
from packhorse.dataset.errors import PreparedDatasetError
from packhorse.dataset.json_files import parse_counts, parse_templates
from packhorse.dataset.layout import COUNTS, MANIFEST, SEQPACK_POOLS, TEMPLATES
from packhorse.dataset.load import PreparedDataset, open_prepared
from packhorse.dataset.manifest import Manifest
from packhorse.dataset.plain_files import open_file, read_file
from packhorse.epoch import PlanIndex
from packhorse.packing import Template
from packhorse.parameters import parameter

_MOST_JSON_BYTES = 1 << 30
"""The most bytes of each JSON file; a larger file is refused."""

Loaded = tuple[dict[str, Any], Counter[int], Counter[Template], dict[int, NDArray[np.integer]]]
"""(manifest, counts, templates, length → ids)."""


def is_seqpack_layout(folder: Path) -> bool:
    """Returns whether a folder has seqpack's layout, with one pool file for each length.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     before = is_seqpack_layout(Path(folder))
        ...     Path(folder, "pools").mkdir()
        ...     before, is_seqpack_layout(Path(folder))
        (False, True)
    """
    return (folder / SEQPACK_POOLS).is_dir()


def load_seqpack_layout(folder: Path) -> Loaded:
    """Reads and checks a folder in seqpack's layout.

    Example:
        >>> manifest, counts, templates, pools = load_seqpack_layout(Path("datasets/corpus-of-seqpack"))
        >>> templates, pools[5].tolist()
        (Counter({(5, 3): 2}), [0, 3])

    Raises:
        PreparedDatasetError: a file is missing or unreadable, or the files contradict each other.
    """
    contents = {name: read_file(folder / name, _MOST_JSON_BYTES) for name in (MANIFEST, COUNTS, TEMPLATES)}
    try:
        manifest = json.loads(contents[MANIFEST])
        max_seq_len = int(manifest["max_seq_len"])
        counts = parse_counts(contents[COUNTS])
        templates = parse_templates(contents[TEMPLATES])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise PreparedDatasetError(f"{folder.name} has an unreadable JSON file: {error!r}") from None
    pools = {length: _map_pool(folder, length, count) for length, count in counts.items()}
    try:
        PlanIndex.build(templates, counts, max_seq_len)  # raises a ValueError if they contradict each other
    except ValueError as error:
        raise PreparedDatasetError(f"{folder.name}/{TEMPLATES} does not fit {COUNTS}: {error}") from None
    return manifest, counts, templates, pools


def _map_pool(folder: Path, length: int, count: int) -> NDArray[np.integer]:
    """Maps the ids of the sequences of one length; refuses a file that does not hold `count` ids."""
    path = folder / SEQPACK_POOLS / f"{length}.npy"
    name = f"{folder.name}/{SEQPACK_POOLS}/{path.name}"
    open_file(path).close()  # refuses a fifo, for which NumPy would wait
    try:
        pool: NDArray[np.integer] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError, SyntaxError, TokenError) as error:  # NumPy parses the header as Python
        raise PreparedDatasetError(f"{name} is truncated or no array file: {error}") from None
    if pool.shape != (count,):
        num_ids = pool.shape[0] if pool.ndim else 0
        raise PreparedDatasetError(f"{name} holds {num_ids} ids, but {COUNTS} states {count}")
    return pool


def write_seqpack_layout(dataset: PreparedDataset, folder: Path) -> None:
    """Writes a prepared dataset into `folder`, which exists and is empty, in seqpack's layout.

    Example:
        >>> import tempfile
        >>> from packhorse.dataset import open_prepared
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_seqpack_layout(open_prepared("datasets/corpus"), Path(folder))
        ...     sorted(path.name for path in Path(folder).iterdir())
        ['counts.json', 'manifest.json', 'pools', 'templates.json']

    Raises:
        ValueError: the dataset has groups, or entries that do not begin at their sequence's first token; seqpack's
            layout can express neither.
    """
    if dataset.groups is not None:
        raise ValueError(
            "seqpack's layout cannot say which sequences are a group; use " + parameter("format", "packhorse")
        )
    if dataset.first_tokens is not None:
        raise ValueError("seqpack's layout cannot say where a piece begins; use " + parameter("format", "packhorse"))
    (folder / SEQPACK_POOLS).mkdir()
    for length, ids in pools_by_length(dataset).items():
        path = folder / SEQPACK_POOLS / f"{length}.npy"
        create_array(path, "int64", ids.shape)
        np.load(path, mmap_mode="r+", allow_pickle=False)[:] = ids
    (folder / COUNTS).write_text(json.dumps({str(length): count for length, count in dataset.counts.items()}))
    (folder / TEMPLATES).write_text(json.dumps([[list(template), num] for template, num in dataset.templates.items()]))
    (folder / MANIFEST).write_text(json.dumps(_seqpack_facts(dataset.manifest), indent=2))


def _seqpack_facts(manifest: Manifest) -> dict[str, Any]:
    """Returns the facts of seqpack's manifest, under seqpack's names."""
    return {
        "max_seq_len": manifest.max_seq_len,
        "packer": manifest.algorithm,
        "n_sequences": manifest.num_sequences,
        "n_bins": manifest.num_bins,
        "distinct_lengths": manifest.num_rooms,
        "distinct_templates": manifest.num_templates,
        "total_tokens": manifest.total_tokens,
        "total_capacity": manifest.total_capacity,
        "efficiency": manifest.efficiency,
    }


def pools_by_length(dataset: PreparedDataset) -> dict[int, NDArray[np.integer]]:
    """Returns length → ids as views of the pool, ids ascending; for a dataset without groups and resources.

    If the plan packs groups, the pool has their numbers instead, by the sum of their rooms or by class.

    Example:
        >>> from packhorse.dataset import open_prepared
        >>> {length: ids.tolist() for length, ids in pools_by_length(open_prepared("datasets/corpus")).items()}
        {3: [1, 2], 5: [0, 3]}
    """
    plan = dataset.plan
    columns = (plan.lengths.tolist(), plan.pool_starts.tolist(), plan.counts.tolist())
    return {length: dataset.pool[start : start + count] for length, start, count in zip(*columns, strict=True)}


def load_prepared(path: str | os.PathLike[str]) -> Loaded:
    """Reads and checks a prepared folder, ours or seqpack's.

    Example:
        >>> manifest, counts, templates, pools = load_prepared("datasets/corpus")
        >>> manifest["n_bins"], templates, pools[5].tolist()
        (2, Counter({(5, 3): 2}), [0, 3])

    Args:
        path: the folder.

    Returns:
        (manifest, counts, templates, pools): the manifest as a dict, with seqpack's keys in both layouts; length in
        tokens → number of sequences; template → multiplicity; length → ids, memory-mapped read-only (uint32 or int64;
        ascending in our layout).

    Raises:
        PreparedDatasetError: a file is missing, truncated, altered, or inconsistent with the others.
    """
    if not isinstance(path, str | os.PathLike):
        raise PreparedDatasetError(f"path must be a prepared folder's, got {path!r:.60}")
    folder = Path(path)
    if is_seqpack_layout(folder):
        return load_seqpack_layout(folder)
    dataset = open_prepared(folder)
    content = {**asdict(dataset.manifest), **_seqpack_facts(dataset.manifest)}
    return content, dataset.counts, dataset.templates, pools_by_length(dataset)
