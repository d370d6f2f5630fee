"""The service's answer to PackSequences: the bins of the lengths that were sent, checked against the request.

Leaves a stream that packs to `streams/pack_stream`, and the answer to LocateSequences to `transport/locations`.
"""

import numpy as np
from numpy.typing import NDArray

from packhorse.client.error_texts import too_old
from packhorse.client.errors import DamagedAnswerError
from packhorse.topology import RoomRule
from packhorse.v1 import packing_pb2 as pb

_NUMBER = np.dtype("<u4")
"""The type of numbers in an answer."""


def read_packing(response: pb.PackSequencesResponse, request: pb.PackSequencesRequest) -> list[NDArray[np.int64]]:
    """Returns each bin's indices into the request's lengths, int64.

    The answer holds all indices, bin after bin, and `bin_ends`, where each bin ends among them.

    Raises:
        DamagedAnswerError: the bins do not hold each index once, or break a limit of the request.
        VersionMismatchError: they break groups or resources, because an older server does not know these.
    """
    lengths = np.array(request.lengths, dtype=np.int64)
    if len(response.indices) != _NUMBER.itemsize * len(lengths) or len(response.bin_ends) % _NUMBER.itemsize:
        raise DamagedAnswerError(
            f"the answer holds {len(response.indices)} bytes of indices for {len(lengths)} lengths"
        )
    indices = np.frombuffer(response.indices, dtype=_NUMBER).astype(np.int64)
    ends = np.frombuffer(response.bin_ends, dtype=_NUMBER).astype(np.int64)
    sizes = np.diff(ends, prepend=0)
    least_size = 0 if request.allow_empty else 1
    rooms = RoomRule(request.max_seq_len, max(request.align, 1), request.extra_tokens).room(lengths)
    # In this order: the sums index by `indices` and `ends`, which the lines before them check.
    if (
        not np.array_equal(np.sort(indices), np.arange(len(lengths)))
        or (sizes < least_size).any()
        or (ends[-1] if len(ends) else 0) != len(lengths)
        or len(ends) % max(request.num_bins_multiple_of, 1)  # 0 if the request does not set it
        or _sums(rooms[indices], ends).max(initial=0) > request.max_seq_len
        or _is_mixed(np.array(request.separate_by, dtype=np.int64), indices, sizes)
    ):
        raise DamagedAnswerError("the bins are no packing of the lengths that were sent: bytes changed on the way")
    if _is_torn(np.array(request.groups, dtype=np.int64), indices, sizes):
        raise too_old("groups")
    for budget in request.budgets:
        amounts = np.array(budget.amounts, dtype=np.int64)
        if _sums(amounts[indices], ends).max(initial=0) > budget.cap:
            raise too_old("resources")
    return np.split(indices, ends[:-1]) if len(ends) else []


def _sums(values: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the sum of the values of each bin, which are the differences of running sums at the bins' ends."""
    return np.diff(np.concatenate(([0], np.cumsum(values)))[ends], prepend=0)


def _is_torn(groups: NDArray[np.int64], indices: NDArray[np.int64], sizes: NDArray[np.int64]) -> bool:
    """Whether a group's sequences are in several bins, not next to each other, or in another order.

    Args:
        groups: the group of each sequence, [S]; empty without groups.
        indices: the sequences' indices, bin after bin, [S].
        sizes: sequences in each bin.
    """
    if not len(groups):
        return False
    bins, numbers = np.repeat(np.arange(len(sizes)), sizes), groups[indices]
    # Whether a sequence, from the second on, continues the group of the one before it, in the same bin.
    continues = (np.diff(numbers) == 0) & (np.diff(bins) == 0)
    num_begun = len(indices) - int(continues.sum())  # each group begins once, unless it is torn
    return bool((np.diff(indices)[continues] < 0).any()) or num_begun != len(np.unique(groups))


def _is_mixed(kinds: NDArray[np.int64], indices: NDArray[np.int64], sizes: NDArray[np.int64]) -> bool:
    """Whether sequences of different kinds (numbers of `separate_by`) share a bin; arguments as in `_is_torn`."""
    if not len(kinds):
        return False
    bins = np.repeat(np.arange(len(sizes)), sizes)
    return bool(((np.diff(kinds[indices]) != 0) & (np.diff(bins) == 0)).any())
