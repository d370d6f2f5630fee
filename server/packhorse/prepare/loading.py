"""`load_prepared`: a prepared folder of either layout in the four parts that seqpack's users know.

Owns the common shape; leaves reading and checking to `packhorse.dataset`.
"""

import os
from dataclasses import asdict
from pathlib import Path

from packhorse.dataset import (
    Loaded,
    PreparedDatasetError,
    is_seqpack_layout,
    load_seqpack_layout,
    open_prepared,
    pools_by_length,
)


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
    manifest = dataset.manifest
    content = {**asdict(manifest), "max_seq_len": manifest.max_seq_len, "packer": manifest.algorithm}
    return content, dataset.counts, dataset.templates, pools_by_length(dataset)
