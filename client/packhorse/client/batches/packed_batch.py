"""`Batch` and `PackedBatch`: one batch, as a training step takes it.

Owns a batch's keys, and how it is sent between processes, moved to devices, saved and stacked. Leaves the memory of its
large tensors to `buffers`, filling it to `batch`, its line of text to `summary`, and its picture to
`packhorse.pictures`.
"""

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any, Self

import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from packhorse.client.batches.layout import PackLayout
from packhorse.client.batches.media import MediaLayout
from packhorse.client.batches.saved import restored
from packhorse.client.batches.summary import summarize
from packhorse.client.batches.tensor_memory import aligned_bytes, map_tensors, view_at
from packhorse.shelf import from_shelf

_View = tuple[str, torch.dtype, torch.Size, int]
"""(key, dtype, shape, first byte) of a tensor in the memory that all tensors of a batch share."""


class Batch(dict[str, Any]):
    """A batch of a loader: a dict with the keys of a preset, or of `PackedBatch`.

    It prints in one line, and is sent between processes as one block of memory. `torch.save` writes it, with layout and
    cursor; `torch.load` with `weights_only=True`, its default, reads it in a process that has imported this class.

    Example:
        >>> from packhorse.client import PackedDataset
        >>> [batch, _] = PackedDataset("embedded:datasets", "corpus", "corpus.idx", batch_size=1, preset="padding-free")
        >>> type(batch).__name__, batch["cu_seq_lens_q"].tolist(), batch["cursor"]["position"]
        ('Batch', [0, 5, 8], 1)
    """

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        """Returns a batch with every tensor on the device; the layout and integers stay on the host.

        Args:
            device: a torch device, or its name.
            non_blocking: whether to return before copies from pinned memory are done.
        """
        return map_tensors(lambda tensor: tensor.to(device, non_blocking=non_blocking), self)

    def pin_memory(self) -> Self:
        """Returns a batch with every tensor in page-locked memory. This needs an accelerator."""
        return map_tensors(torch.Tensor.pin_memory, self)

    def show(self) -> Any:
        """Returns the batch's picture; a ValueError for a preset's keys. See `packhorse.pictures.draw_batch`."""
        return from_shelf("draw_batch")(self)

    def _repr_html_(self) -> str | None:
        return None  # a notebook then shows the summary

    def __repr__(self) -> str:
        return summarize(self)

    def __missing__(self, key: object) -> Any:
        """Raises a KeyError that names the most similar key."""
        names = [str(name) for name in self]
        near = get_close_matches(str(key), names, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise KeyError(f"this batch has no {key!r}{hint}; it has {', '.join(names)}")

    def __copy__(self) -> Self:
        return type(self)(self)

    def __reduce__(self) -> tuple[Callable[..., "Batch"], tuple[Any, ...]]:
        """Pickles all CPU tensors as one block of memory, shared if this is a dataloader worker; `_open` reads it.

        The receiver's tensors are views of it. PyTorch would send every tensor of a worker by its own file descriptor,
        which costs the trainer more time than all tokens together.
        """
        is_view = {name: isinstance(value, torch.Tensor) and value.device.type == "cpu" for name, value in self.items()}
        views: list[_View] = []
        num_bytes = 0
        for name, value in self.items():
            if is_view[name]:
                views.append((name, value.dtype, value.shape, num_bytes))
                num_bytes += aligned_bytes(value)
        memory = torch.empty(num_bytes, dtype=torch.uint8)
        if num_bytes and get_worker_info() is not None:
            memory = memory.share_memory_()  # type: ignore[no-untyped-call]
        for name, dtype, shape, start in views:
            view_at(memory, dtype, shape, start).copy_(self[name])
        rest = {name: None if is_view[name] else value for name, value in self.items()}  # None keeps the keys' order
        return _open, (type(self), memory, views, rest)


class PackedBatch(Batch):
    """One packed batch: a dict with the keys below.

    Legend: B rows, L tokens in a row, n sequences.

    A row is a bin, and L is max_seq_len; flattened, B is 1 and L the number of all tokens. With `component_rows` a bin
    of k joined bins is k rows, and L is max_seq_len / k.

    A notebook shows its picture.

    Example:
        >>> from packhorse.client import PackedDataset
        >>> batch = next(iter(PackedDataset("embedded:datasets", "corpus", "corpus.idx", batch_size=1)))
        >>> batch["input_ids"].tolist(), batch["cu_seqlens"].tolist()
        ([[0, 1, 2, 3, 4, 0, 1, 2]], [0, 5, 8])
    """

    input_ids: torch.Tensor
    """Tokens, each bin's sequences from the left, then padding: int64 [B, L]. With the plan's `align` or `extra_tokens`
    a sequence's room may end with padding."""
    labels: torch.Tensor
    """Targets: int64 [B, L]; -100 on padding, at sequence boundaries and where the loss mask is 0."""
    shift_labels: bool
    """Whether labels are shifted: then `labels[t]` is the token after t, else token t. Losses read it, so that labels
    are shifted once."""
    sequence_ids: torch.Tensor
    """0, 1, 2, … for the sequences of each row, and larger numbers for its padding: int32 [B, L]."""
    position_ids: torch.Tensor
    """0, 1, 2, … within each sequence's room, and within the padding of each row: int64 [B, L]. With
    `continue_positions` a piece's positions begin at its first token's number in the whole sequence. With media, for a
    model with three position ids per token: [4, B, L], these and then the model's three.
    """
    attention_mask: torch.Tensor
    """1 on tokens, 0 on padding: int64 [B, L]."""
    cu_seqlens: torch.Tensor
    """Offsets of the sequences in the tokens of all rows end to end, padding left out: int32 [n + 1]. A flat batch
    without any sequence is one segment of padding, [0, L], as in presets."""
    max_seqlen: int
    """Length of the longest sequence in tokens; without any sequence 0, or L in a flat batch. A Python int, so that no
    code waits for a device to read it.
    """
    ids: torch.Tensor
    """Ids of the sequences, row after row: int64 [n]."""
    layout: PackLayout
    """Where each sequence lies, in host memory. Masks are made from it."""
    group_ids: torch.Tensor
    """With groups: every sequence's group, -1 without one, in the order of `ids`: int64 [n]."""
    component_ids: torch.Tensor
    """In a mixture: every sequence's component, in the order of `ids`: int32 [n]."""
    bin_component_ids: torch.Tensor
    """In a mixture: the component of every bin, or with `component_rows` of every row; -1 without sequences: int32
    [bins], or [rows] with `component_rows`. Unless the batch is flat, these are its B rows.
    """
    component_names: Sequence[str]
    """In a mixture: the components' names, indexed by these ids. A tuple, which PyTorch's DataLoader turns into a list.
    """
    media: MediaLayout
    """With media: where each image lies, in host memory. The tensors of images have the processor's keys
    (`pixel_values` and the like); a batch without images has none.
    """
    context_rule: Sequence[int]
    """With `tokens_per_rank`: the fields of the dataset's `ContextRule`, in order."""
    cursor: Any
    """Where training is after this batch; added by the dataset."""

    def _repr_html_(self) -> str | None:
        picture: str = self.show().html()
        return picture


def _open(kind: type[Batch], memory: torch.Tensor, views: list[_View], rest: dict[str, Any]) -> Batch:
    """Makes a batch of what `Batch.__reduce__` returned; its tensors are views of `memory`.

    Saved files name this function, so it keeps its name.
    """
    batch = kind(rest)
    for name, dtype, shape, start in views:
        batch[name] = view_at(memory, dtype, shape, start)
    return batch


def _collate(batches: list[Batch], **options: Any) -> Batch:
    """Stacks rows for a DataLoader, as its default does with any dict; a ValueError for batches, which are not rows."""
    first = batches[0]
    if "cursor" in first or "layout" in first:
        raise ValueError(
            "this DataLoader would stack batches of a PackedDataset, which are whole already: write "
            "DataLoader(dataset, batch_size=None), and give the number of bins to the dataset, "
            "PackedDataset(…, batch_size=8)"
        )
    return Batch({key: collate([row[key] for row in batches], **options) for key in first})


_NAME_OF_EARLIER_FILES = "packhorse.client.batches.layout.restored"
"""The name of `restored` in files that were saved when it was in another module."""

# What `torch.load` with `weights_only=True` may call to read a batch.
torch.serialization.add_safe_globals(
    [Batch, PackedBatch, PackLayout, MediaLayout, restored, _open, (restored, _NAME_OF_EARLIER_FILES)]
)
default_collate_fn_map[Batch] = _collate  # what a DataLoader with a batch_size does with rows of this class
