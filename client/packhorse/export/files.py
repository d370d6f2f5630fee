"""Writing the bins of an epoch to files, for loaders that read files instead of a stream.

Owns `export_epoch`, and the forms JSON lines and Parquet, each with bins in the order of positions. Leaves the form of
xtuner to `export._xtuner`, requesting bins to `client/api.py`, and files that appear whole to `packhorse.storage`.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from packhorse.client import BinBlock, Client
from packhorse.client.options import NO_SKIPS
from packhorse.client.streams import component_names, facts_of_bins
from packhorse.export._xtuner import XTUNER_FILES, write_xtuner
from packhorse.formats import require
from packhorse.parameters import parameter
from packhorse.storage import AtomicFiles, refuse_existing, refuse_url
from packhorse.topology import Skips
from packhorse.types import StreamHeader

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FILE_FORMATS", "export_epoch"]

FILE_FORMATS = ("jsonl", "parquet", "xtuner")
"""The forms that `export_epoch` writes."""


def export_epoch(
    client: Client,
    dataset: str,
    output: str | Path,
    *,
    file_format: str,
    epoch: int = 0,
    seed: int = 0,
    skip: Skips = NO_SKIPS,
    paths: Sequence[str] = (),
    on_bins: Callable[[int], None] = lambda _: None,
    overwrite: bool = False,
    with_tokens: bool = False,
) -> int:
    """Writes the bins of an epoch to files, in the order of positions.

    A run without a balance gets these bins in this order, with any number of ranks. Memory does not grow with the
    epoch. The output appears when it is complete, or not at all.

    Example:
        >>> from packhorse.client import connect
        >>> with connect("embedded:datasets") as client:
        ...     export_epoch(client, "corpus", "plan.jsonl", file_format="jsonl", seed=1)
        2
        >>> print(Path("plan.jsonl").read_text().splitlines()[0])
        {"position": 0, "ids": [3, 2], "lengths": [5, 3]}

    Args:
        client: an open client.
        dataset: name of the dataset.
        output: a file; for xtuner a folder.
        file_format: `jsonl` or `parquet`, a bin a line or row; or `xtuner`, for its `PresetPackDataset`, in which a
            sequence's id is its line in the file that xtuner reads.
        epoch: 0-based.
        seed: seed of the run.
        skip: positions to leave out.
        paths: for xtuner, the data file that it reads; for a mixture one for each component, in order.
        on_bins: called with the number of bins that were written, for progress.
        overwrite: whether the output, when it is complete, replaces an existing one.
        with_tokens: whether to also write the tokens of each sequence in a bin, and their loss mask if they have one,
            as the server sends them; not for xtuner, which reads tokens itself.

    Returns:
        The number of bins.

    Raises:
        ValueError: the format is unknown, `paths` does not fit, the output is a URL, or the dataset has what the format
            cannot hold.
        FileExistsError: the output exists, and overwrite is False.
        TokensNotServedError: `with_tokens` is given, and the server does not send tokens of this dataset.
    """
    refuse_url(output, "output")
    if file_format not in FILE_FORMATS:
        raise ValueError(parameter("file_format") + f" must be one of {', '.join(FILE_FORMATS)}, got {file_format!r}")
    is_xtuner = file_format == "xtuner"
    if bool(paths) != is_xtuner:
        raise ValueError(
            parameter("paths")
            + " names the files that xtuner reads: give it with "
            + parameter("file_format", "xtuner")
            + ", and only then"
        )
    if with_tokens and is_xtuner:
        raise ValueError("xtuner reads tokens itself: leave them out, or take the format jsonl or parquet")
    output = Path(output)
    files = [output / name for name in XTUNER_FILES] if is_xtuner else [output]
    refuse_existing(files, overwrite=overwrite)
    with client.stream_bins(dataset, epoch=epoch, seed=seed, skip=skip, with_tokens=with_tokens) as stream:
        header = stream.header
        num_data_files = max(len(header.components), 1)
        if is_xtuner and len(paths) != num_data_files:
            raise ValueError(
                parameter("paths") + f" has {len(paths)} files, but {dataset!r} is made of {num_data_files}"
            )
        blocks = _reported(stream, on_bins)
        with AtomicFiles(files, overwrite=overwrite) as atomic:
            if is_xtuner:
                return write_xtuner(blocks, atomic.files, paths)
            if file_format == "parquet":
                return _write_parquet(blocks, atomic.files[0], header, with_tokens=with_tokens)
            return _write_json_lines(blocks, atomic.files[0], header)


def _reported(blocks: Iterator[BinBlock], on_bins: Callable[[int], None]) -> Iterator[BinBlock]:
    """Yields blocks that may be written, and reports the number of bins of each once it is written."""
    for block in blocks:
        _refuse_redactions(block)
        yield block
        on_bins(len(block))


def _refuse_redactions(block: BinBlock) -> None:
    """Raises a ValueError if a takedown redacts sequences of a block: a loader that reads files would not apply it."""
    if block.redactions is not None:
        raise ValueError(
            "a takedown redacts sequences of this dataset, which a plan cannot tell another loader; take the "
            "sequences out of its data as well, and prepare without them"
        )


def _write_json_lines(blocks: Iterator[BinBlock], file: BinaryIO, header: StreamHeader) -> int:
    """Writes a JSON object for each bin; returns the number of bins."""
    num_bins = 0
    for block in blocks:
        file.write("".join(f"{json.dumps(facts)}\n" for facts in facts_of_bins(block, header)).encode())
        num_bins += len(block)
    return num_bins


def _write_parquet(blocks: Iterator[BinBlock], file: BinaryIO, header: StreamHeader, *, with_tokens: bool) -> int:
    """Writes a row for each bin; returns the number of bins. Columns that the dataset lacks hold nulls."""
    require("pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    types_by_sequence = {  # column with a list for each bin, of a value for each sequence -> the type of a value
        "ids": pa.int64(),
        "lengths": pa.int32(),
        "first_tokens": pa.int64(),
        "groups": pa.int64(),
        "rows": pa.uint16(),
    }
    types_by_token = {"tokens": pa.uint32(), "loss_mask": pa.bool_()} if with_tokens else {}
    lists = [(name, pa.list_(value_type)) for name, value_type in types_by_sequence.items()]
    nested_lists = [(name, pa.list_(pa.list_(value_type))) for name, value_type in types_by_token.items()]
    schema = pa.schema([("position", pa.int64()), *lists, ("component", pa.string()), *nested_lists])
    num_bins = 0
    with pq.ParquetWriter(file, schema) as writer:
        for block in blocks:
            bounds = np.concatenate(([0], block.bin_ends)).astype(np.int32)  # ends [2, 3] -> [0, 2, 3]
            by_sequence = [
                _lists_of_bins(block, name, bounds, value_type) for name, value_type in types_by_sequence.items()
            ]
            components = component_names(block, header) or [None] * len(block)
            columns = [pa.array(block.positions), *by_sequence, pa.array(components, pa.string())]
            for name, value_type in types_by_token.items():
                sent = getattr(block, name)  # None without a loss mask
                columns.append(_lists_of_sequences(None if sent is None else sent.by_entry(), bounds, value_type))
            writer.write_batch(pa.record_batch(columns, schema=schema))
            num_bins += len(block)
    return num_bins


def _lists_of_bins(block: BinBlock, name: str, bounds: NDArray[np.int32], value_type: "pa.DataType") -> "pa.Array":
    """Returns a column with a list for each bin of a block, with a value for each sequence; nulls if it has none.

    The column "groups" also has null for a sequence without a group, and for a bin without groups.
    """
    import pyarrow as pa

    values = block.group_ids if name == "groups" else getattr(block, name)
    if values is None:
        return pa.nulls(len(block), pa.list_(value_type))
    if name != "groups":
        return pa.ListArray.from_arrays(pa.array(bounds), pa.array(values, value_type))
    has_group = values >= 0
    num_before = np.concatenate(([0], np.cumsum(has_group)))  # of each sequence: [yes, no, yes] -> [0, 1, 1, 2]
    has_no_groups = np.diff(num_before[bounds]) == 0  # of each bin
    grouped = pa.array(values, value_type, mask=~has_group)
    return pa.ListArray.from_arrays(pa.array(bounds), grouped, mask=pa.array(has_no_groups))


def _lists_of_sequences(
    sequences: list[NDArray[Any]] | None, bounds: NDArray[np.int32], value_type: "pa.DataType"
) -> "pa.Array":
    """Returns an Arrow array with a list for each bin, which has a list of values for each sequence; or nulls.

    It holds nulls if `sequences` is None, as without a loss mask. `bounds` are those of the bins: int32 [bins + 1].
    """
    import pyarrow as pa

    if sequences is None:
        return pa.nulls(len(bounds) - 1, pa.list_(pa.list_(value_type)))
    value_bounds = np.cumsum([0, *map(len, sequences)], dtype=np.int32)  # sizes [5, 3] -> [0, 5, 8]
    values = pa.array(np.concatenate([np.empty(0, np.uint32), *sequences]), value_type)
    return pa.ListArray.from_arrays(pa.array(bounds), pa.ListArray.from_arrays(pa.array(value_bounds), values))
