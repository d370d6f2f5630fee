"""`PackedBatch`: one batch, as a training step takes it.

Owns a batch's keys, its way between processes, devices and files, and how it prints; leaves what fills it to `batch`
and its picture to `pictures`.
"""

import copy
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, Self

import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from packhorse.client.batches.layout import PackLayout
from packhorse.client.batches.saved import restored
from packhorse.client.pictures.batch import draw_batch, summarize
from packhorse.client.pictures.picture import Picture

_ALIGNMENT_BYTES = 64

_View = tuple[str, torch.dtype, torch.Size, int]
"""A tensor in a memory: its key, dtype and shape, and its first byte."""


class PackedBatch(dict[str, Any]):
    """One packed batch: a dict with the keys below, or with those of a preset.

    Legend: B rows, L tokens in a row, n sequences.

    A row is a bin, and L is max_seq_len; flattened, B is 1 and L the number of all tokens. With `component_rows` a bin
    is as many rows as a mixture joined in it, and L as much shorter.

    It prints in one line, and a notebook shows its picture. `torch.save` takes it, and `torch.load` with
    `weights_only=True`, its default, reads it where this class has been imported, layout and cursor included.

    Example:
        >>> from packhorse.client import PackedDataset
        >>> batch = next(iter(PackedDataset("embedded:datasets", "corpus", "corpus.idx", batch_size=1)))
        >>> batch["input_ids"].tolist(), batch["cu_seqlens"].tolist()
        ([[0, 1, 2, 3, 4, 0, 1, 2]], [0, 5, 8])
    """

    input_ids: torch.Tensor
    """Tokens, each bin's sequences from the left, then padding: int64 [B, L]. With the plan's `align` or `extra_tokens`
    a sequence's room ends with padding of its own."""
    labels: torch.Tensor
    """Targets, -100 on padding, at the sequences' boundaries and where the loss mask is 0 (see `labels`):
    int64 [B, L]."""
    sequence_ids: torch.Tensor
    """0, 1, 2, … for the sequences of each row, and further numbers for its padding: int32 [B, L]."""
    position_ids: torch.Tensor
    """0, 1, 2, … within each room of a sequence, and within the padding of each row: int64 [B, L]. With
    `continue_positions` a piece's begin at its first token's index in the whole sequence."""
    attention_mask: torch.Tensor
    """1 on tokens, 0 on padding: int64 [B, L]."""
    cu_seqlens: torch.Tensor
    """Offsets of the sequences in the tokens of all rows end to end, padding left out: int32 [n + 1]; on the CPU as
    assembled, on the device behind a loader that moves batches there."""
    max_seqlen: int
    """The longest sequence of the batch, in tokens; 0 without any. A host integer, so that no kernel waits for it."""
    ids: torch.Tensor
    """Ids of the sequences, row after row: int64 [n]."""
    layout: PackLayout
    """Where each sequence lies, in host memory: what masks are made from."""
    group_ids: torch.Tensor
    """Of a dataset with groups, the group of every sequence, -1 for one of none, in the order of `ids`: int64 [n]."""
    component_ids: torch.Tensor
    """Of a mixture, which component every sequence is of, in the order of `ids`: int32 [n]."""
    bin_component_ids: torch.Tensor
    """Of a mixture, which component every bin is of, or with `component_rows` every row of a bin, -1 for one without
    sequences: int32 [bins]; a row of the batch each, unless flattened."""
    component_names: Sequence[str]
    """Of a mixture, the components' names, by these numbers: a tuple, which PyTorch's DataLoader makes a list."""
    cursor: Any
    """Where training is after this batch; added by the dataset."""

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        """Returns a batch with every tensor on the device; what else it holds (the layout, integers) stays as it is.

        Args:
            device: as torch takes it.
            non_blocking: whether copies from pinned memory go on while this returns.
        """
        return map_tensors(lambda tensor: tensor.to(device, non_blocking=non_blocking), self)

    def pin_memory(self) -> Self:
        """Returns a batch with every tensor in page-locked memory, which needs an accelerator."""
        return map_tensors(torch.Tensor.pin_memory, self)

    def show(self) -> Picture:
        """Returns the batch's picture; see `draw_batch`."""
        return draw_batch(self)

    def __repr__(self) -> str:
        return summarize(self)

    def _repr_html_(self) -> str | None:
        return self.show().html() if "layout" in self else None  # a preset's keys: the summary is shown

    def __copy__(self) -> Self:
        return type(self)(self)

    def __reduce__(self) -> tuple[Callable[..., "PackedBatch"], tuple[Any, ...]]:
        """Lays tensors into one memory, of which they are views afterwards.

        From a dataloader worker PyTorch sends every tensor by a file descriptor of its own, and each costs the trainer
        more time than all tokens together.
        """
        is_laid = {name: isinstance(value, torch.Tensor) and value.device.type == "cpu" for name, value in self.items()}
        views: list[_View] = []
        num_bytes = 0
        for name, value in self.items():
            if is_laid[name]:
                views.append((name, value.dtype, value.shape, num_bytes))
                num_bytes += -(-value.nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        memory = torch.empty(num_bytes, dtype=torch.uint8)
        if num_bytes and get_worker_info() is not None:
            memory = memory.share_memory_()  # type: ignore[no-untyped-call]
        for name, dtype, shape, start in views:
            _view(memory, dtype, shape, start).copy_(self[name])
        rest = {name: None if is_laid[name] else value for name, value in self.items()}
        return _open, (type(self), memory, views, rest)


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """Returns the value with every tensor in its dicts, lists and tuples replaced; the value itself is not changed."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, MutableMapping):
        mapped = copy.copy(value)
        for key, item in value.items():
            mapped[key] = map_tensors(function, item)
        return mapped
    if isinstance(value, list):
        return [map_tensors(function, item) for item in value]
    if isinstance(value, tuple):
        items = [map_tensors(function, item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return value


def _open(kind: type[PackedBatch], memory: torch.Tensor, views: list[_View], rest: dict[str, Any]) -> PackedBatch:
    batch = kind(rest)
    for name, dtype, shape, start in views:
        batch[name] = _view(memory, dtype, shape, start)
    return batch


def _view(memory: torch.Tensor, dtype: torch.dtype, shape: torch.Size, start: int) -> torch.Tensor:
    return memory[start : start + shape.numel() * dtype.itemsize].view(dtype).view(shape)


def _collate(batches: list[PackedBatch], **options: Any) -> PackedBatch:
    """Stacks rows, as a DataLoader does with any dict, but refuses whole batches.

    Raises:
        ValueError: these are whole batches.
    """
    first = batches[0]
    if "cursor" in first or "layout" in first:
        raise ValueError(
            "this DataLoader would stack batches of a PackedDataset, which are whole already: write "
            "DataLoader(dataset, batch_size=None), and give the number of bins to the dataset, "
            "PackedDataset(…, batch_size=8)"
        )
    return PackedBatch({key: collate([row[key] for row in batches], **options) for key in first})


torch.serialization.add_safe_globals([PackedBatch, PackLayout, restored, _open])
default_collate_fn_map[PackedBatch] = _collate
