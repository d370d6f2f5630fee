"""The options of a dataset and of its loader, by name and type, for the functions that pass them on.

Owns the names that may be passed on and the error for others. Leaves meaning, defaults and checks to `PackedDataset`
and `PackedDataLoader`, whose signatures these follow.
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any, TypedDict, cast

import torch

from packhorse.client.batches.separators import Separators
from packhorse.client.presets import Preset
from packhorse.client.transport.access import Access
from packhorse.formats.asking import RetryPolicy
from packhorse.topology import Balance, RemainderPolicy, Skips, StreamMode

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class DatasetOptions(TypedDict, total=False):
    """Options of `PackedDataset`, beside what is streamed and the batch size."""

    seed: int
    epoch: int
    rank: int | None
    world_size: int | None
    device_mesh: "DeviceMesh | None"
    remainder: RemainderPolicy | str
    mode: StreamMode | str
    balance: Balance | str
    accumulation: int
    cost_linear: int
    skip: Skips | str | Mapping[int, Skips | str]
    loss_mask: Any
    separators: Separators | None
    preset: Preset | str | None
    pad_token_id: int
    flatten: bool | None
    shift_labels: bool | None
    continue_positions: bool
    shared_prefix: bool
    component_rows: bool
    timeout_seconds: float | None
    retry: RetryPolicy | None
    access: Access | None


class LoaderOptions(TypedDict, total=False):
    """Options of `PackedDataLoader`."""

    num_workers: int
    device: torch.device | str | None
    prefetch_factor: int
    depth: int
    multiprocessing_context: BaseContext | str | None


class LoadingOptions(DatasetOptions, LoaderOptions, total=False):
    """Options of a dataset and of its loader."""


def check_options(where: str, names: Iterable[str]) -> None:
    """Refuses an option that there is not.

    Raises:
        TypeError: names the first of them, and those that are spelled alike.
    """
    known = LoadingOptions.__annotations__
    for name in names:
        if name not in known:
            near = get_close_matches(name, known)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(sorted(known))}"
            raise TypeError(f"{where} has no option {name!r}; {hint}")


def divide_options(options: LoadingOptions) -> tuple[DatasetOptions, LoaderOptions]:
    """Returns the dataset's options and the loader's, out of checked ones."""
    of_loader = {name: value for name, value in options.items() if name in LoaderOptions.__annotations__}
    of_dataset = {name: value for name, value in options.items() if name not in of_loader}
    return cast(DatasetOptions, of_dataset), cast(LoaderOptions, of_loader)
