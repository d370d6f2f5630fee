"""Ranks of one model that get the same batches: the first of them makes each batch, and sends it to the others.

Owns the messages between them. If making a batch fails on the first rank, the others get the error, so that none waits
forever. All ranks call `next` together, as they run their model together, so the trainer's own process group is enough,
and no thread is needed. Leaves a batch's form on the way to `_batch_bytes`, and their data-parallel rank to `ranks`.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import torch
import torch.distributed as dist

from packhorse.client.loading._batch_bytes import bytes_of, filled, outline_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_Batch = TypeVar("_Batch")


class _Announcement(NamedTuple):
    """The message that is sent before a batch's tensors."""

    outline: Any = None
    """The batch's outline; None if there is no batch."""
    num_bytes: int = 0
    """Bytes of all tensors together."""
    error: str = ""
    """The error for which there is no batch; empty at an epoch's end."""


class Peers:
    """A process group whose ranks get the same batches.

    Example:
        >>> peers = Peers.of(mesh["tp"])  # doctest: +SKIP
        >>> own = make_batches() if peers.is_first else None  # doctest: +SKIP
        >>> for batch in peers.share(own, torch.device("cuda")):  # doctest: +SKIP
        ...     train(batch)

    Args:
        group: the process group; its first rank makes the batches.

    Raises:
        ValueError: this process is not in the group.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        rank = dist.get_rank(group)
        if rank < 0:
            raise ValueError("peers must be a process group that this process is in")
        self.is_first = rank == 0
        self._group = group
        self._first_rank = first_rank_of(group)
        self._device = device_of(group)

    @classmethod
    def of(cls, peers: "dist.ProcessGroup | DeviceMesh | None") -> "Peers | None":
        """Returns the peers in a process group or along a mesh's dimension; None if there is only one.

        Raises:
            ValueError: it is neither, or a mesh of several dimensions.
        """
        if peers is None:
            return None
        names = getattr(peers, "mesh_dim_names", None)
        if names is not None and len(names) != 1:
            raise ValueError(
                f"peers is a mesh of {len(names)} dimensions, {', '.join(names)}; give those that divide the model as "
                "one, mesh['tp', 'cp']._flatten('model'), or their process group"
            )
        group: Any = peers if names is None else cast("DeviceMesh", peers).get_group()
        if not isinstance(group, dist.ProcessGroup):
            raise ValueError(f"peers must be a process group or a mesh's dimension, got {type(peers).__name__}")
        return None if dist.get_world_size(group) == 1 else cls(group)

    def agree(self, facts: dict[str, Any]) -> None:
        """Checks that all peers are about to read the same. Call it on all of them.

        Args:
            facts: what this rank is about to read: name, for an error → value.

        Raises:
            ValueError: a fact differs between peers.
        """
        of_peers: list[Any] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(of_peers, facts, self._group)
        for number, theirs in enumerate(of_peers):
            for name, value in of_peers[0].items():
                if theirs[name] != value:
                    raise ValueError(
                        f"peers must read the same, and {name} is {value} on the first and {theirs[name]} on number "
                        f"{number}; give all of them the same, LoaderOptions(rank=…) included"
                    )

    def share(self, batches: Iterator[_Batch] | None, device: torch.device) -> Iterator[_Batch]:
        """Yields the first rank's batches on every rank; on a GPU through the group's own backend.

        Args:
            batches: on the first rank, its batches; None on the others.
            device: the device of the tensors that the others receive.

        Raises:
            RuntimeError: on the others, if making a batch failed on the first rank, which raises the error itself.
        """
        return self._received(device) if batches is None else self._sent(batches)

    def _sent(self, batches: Iterator[_Batch]) -> Iterator[_Batch]:
        """Yields the first rank's batches, and sends each to the others: an `_Announcement`, then the bytes."""
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                self._exchange(_Announcement())  # neither a batch nor an error: the epoch's end
                return
            except Exception as error:
                self._exchange(_Announcement(error=f"{type(error).__name__}: {error}"))
                raise
            data = bytes_of(batch, self._device)
            self._exchange(_Announcement(outline=outline_of(batch), num_bytes=len(data)))
            broadcast(data, self._group, self._first_rank)
            yield batch

    def _received(self, device: torch.device) -> Iterator[Any]:
        """Yields the batches that the first rank sends, until its epoch ends."""
        while True:
            announced = self._exchange(sent=None)
            if announced.error:
                raise RuntimeError(
                    f"the first of this rank's peers, which reads for all of them, failed: {announced.error}"
                )
            if announced.outline is None:
                return
            data = torch.empty(announced.num_bytes, dtype=torch.uint8, device=self._device)
            broadcast(data, self._group, self._first_rank)
            yield filled(announced.outline, data.to(device))

    def _exchange(self, sent: _Announcement | None) -> _Announcement:
        """Sends the message about the next batch, or receives it if `sent` is None; returns it."""
        messages: list[Any] = [sent]  # on the others, it is replaced by what the first rank sent
        dist.broadcast_object_list(messages, self._first_rank, group=self._group, device=self._device)
        announced: _Announcement = messages[0]
        return announced


def first_rank_of(group: dist.ProcessGroup) -> int:
    """Returns the global rank of the group's first rank, which sends to the others."""
    return dist.get_global_rank(group, 0)


def broadcast(tensor: torch.Tensor, group: dist.ProcessGroup, first_rank: int) -> torch.Tensor:
    """Sends a tensor from the group's first rank to the others, in place, and returns it."""
    dist.broadcast(tensor, first_rank, group=group)
    return tensor


def device_of(group: dist.ProcessGroup) -> torch.device:
    """Returns the device on which a group's collectives need their tensors: the current GPU with NCCL, else the CPU."""
    is_gpu = "nccl" in dist.get_backend(group)
    return torch.device("cuda", torch.cuda.current_device()) if is_gpu else torch.device("cpu")
