"""The bins of an epoch as the files of xtuner's `PresetPackDataset` and `PresetSampler`.

Leaves the other forms to `export.files`.
"""

import json
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import numpy as np

from packhorse.client import BinBlock

XTUNER_FILES = ("samples.npy", "boundaries.npy", "order.npy", "paths.json")
"""The files; `write_xtuner` says what they hold."""
_PATH, _ID, _FIRST_TOKEN, _END_TOKEN, _NUM_COLUMNS = 0, 1, 4, 5, 6
"""Columns of `samples.npy` that are filled in, and how many there are."""
_UNUSED = -1
"""Value of the other columns."""


def write_xtuner(blocks: Iterator[BinBlock], files: Sequence[BinaryIO], paths: Sequence[str]) -> int:
    """Writes xtuner's four files; returns the number of bins.

    `samples.npy` has six numbers for each sequence: the index in `paths` of its component's file, its id, -1, -1, and
    its first and end token. `boundaries.npy` has the bins' bounds in samples, `order.npy` the bins in their order,
    `paths.json` the paths.
    """
    samples, boundaries, order, path_list = files
    for file, shape in ((samples, (0, _NUM_COLUMNS)), (boundaries, (0,)), (order, (0,))):
        _write_header(file, shape)
    boundaries.write(np.zeros(1, "<i8").tobytes())  # the first bin begins at sample 0
    num_bins = num_samples = 0
    for block in blocks:
        component_ids = block.component_of_sequences()
        rows = np.full((len(block.ids), _NUM_COLUMNS), _UNUSED, dtype="<i8")
        rows[:, _PATH] = 0 if component_ids is None else component_ids
        rows[:, _ID] = block.ids
        rows[:, _FIRST_TOKEN] = 0 if block.first_tokens is None else block.first_tokens
        rows[:, _END_TOKEN] = rows[:, _FIRST_TOKEN] + block.lengths
        samples.write(rows.data)
        boundaries.write((block.bin_ends + num_samples).astype("<i8").data)
        order.write(np.arange(num_bins, num_bins + len(block), dtype="<i8").data)
        num_bins += len(block)
        num_samples += len(rows)
    # The headers again, now that the numbers of rows are known.
    for file, shape in ((samples, (num_samples, _NUM_COLUMNS)), (boundaries, (num_bins + 1,)), (order, (num_bins,))):
        file.seek(0)
        _write_header(file, shape)
    path_list.write(json.dumps(list(paths)).encode())
    return num_bins


def _write_header(file: BinaryIO, shape: tuple[int, ...]) -> None:
    """Writes the header of a .npy file of int64.

    NumPy pads the header so that it can be rewritten in place with another number of rows, once that is known.
    """
    np.lib.format.write_array_header_1_0(file, {"descr": "<i8", "fortran_order": False, "shape": shape})
