"""Online packing that continues when its server fails.

Owns the sequences that were sent and are in no bin yet, so that a broken stream reopens without loss or repetition.
Leaves the choice of bins to the service and connections to the transport.
"""

import queue
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packhorse.client.errors import DamagedAnswerError, PackhorseError, ServerUnavailableError, TransientError
from packhorse.client.streams.blocks import BinBlock, decode_bins
from packhorse.client.transport.methods import PACK_STREAM, Transport
from packhorse.client.transport.requests import integers, invalid, too_old
from packhorse.client.transport.retries import Attempts
from packhorse.formats.retry_policy import RetryPolicy
from packhorse.topology import RoomRule
from packhorse.v1 import packing_pb2 as pb

Bin: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int32]]
"""(ids int64 [k], lengths int32 [k]) of one bin's sequences, by descending length; a group's are adjacent, in order."""

SEQUENCES_PER_MESSAGE = 10_000
"""After which a message ends; its last group is whole."""


class _Sequence(NamedTuple):
    """A sequence that was sent, or will be, and that no bin has held yet."""

    id: int
    length: int
    group: int
    """Own number of the first sequence of its group."""
    amounts: tuple[int, ...] = ()
    """What it takes of each of the stream's budgets."""


class PackStream:
    """Packs sequences as they arrive into full bins. Made by `Client.pack_stream`; use it in a `with` statement.

    The service holds back at most `lookahead_sequences` of them to make fuller bins; `flush` packs those too. When the
    connection breaks, the stream reopens on any replica and sends every sequence again that no bin has held yet, so
    that each comes exactly once. The bins may then differ from those without the break.

    Where the stream packs for D ranks, bin k of all that it has returned belongs to rank k mod D, after a break too:
    bins come in rounds of a multiple of D, and a bin that waits for its round has not been returned.

    Example:
        >>> from packhorse.client import connect
        >>> with connect("embedded:datasets") as client, client.pack_stream(max_seq_len=8) as stream:
        ...     ready = stream.send(ids=[10, 11, 12], lengths=[5, 3, 4])
        ...     print(len(ready), stream.num_held)  # held back for fuller bins
        ...     print([ids.tolist() for ids, lengths in stream.flush()])
        0 3
        [[10, 11], [12]]

    Args:
        transport: reaches the service.
        options: of the stream.
        retry: how long to try again.
    """

    def __init__(self, transport: Transport, options: pb.PackStreamOptions, retry: RetryPolicy) -> None:
        self._transport = transport
        self._options = options
        self._attempts = Attempts(retry, has_answered=lambda: transport.has_answered)
        self._held: dict[int, _Sequence] = {}  # own number -> sequence, in the order of arrival, group by group
        self._unsent: dict[int, None] = {}  # own numbers that the open call has not been sent, in order
        self._num_sent = 0
        self._last_packed = -1  # the last own number that the service has ever taken
        self._has_groups = False
        self._ready: list[Bin] = []
        self._requests: queue.SimpleQueue[pb.PackStreamRequest | None] | None = None
        self._responses: Iterator[pb.PackStreamResponse] | None = None

    @property
    def num_held(self) -> int:
        """Number of sequences sent that are not in a returned bin yet."""
        return len(self._held)

    def send(
        self,
        ids: ArrayLike | Iterable[int],
        lengths: ArrayLike | Iterable[int],
        groups: ArrayLike | Iterable[int] | None = None,
        *,
        amounts: Mapping[str, ArrayLike | Iterable[int]] | None = None,
    ) -> list[Bin]:
        """Sends sequences, and returns the bins that are full.

        Example:
            >>> from packhorse.client import connect
            >>> with connect("embedded:datasets") as client, client.pack_stream(max_seq_len=8) as stream:
            ...     bins = stream.send([10, 11, 12, 13], [3, 4, 2, 3], groups=[0, 1, 0, 1]) + stream.flush()
            >>> [ids.tolist() for ids, lengths in bins]
            [[11, 13], [10, 12]]

        Args:
            ids: int64 [S], chosen by the trainer; they need not be unique.
            lengths: int [S], in tokens, each in [1, max_seq_len].
            groups: int [S]: sequences of this call with equal numbers share a bin, next to each other in their order;
                without max_sequences_per_bin. A group is handed over whole, so equal numbers of two calls are two
                groups. None packs each sequence alone.
            amounts: of a stream with `resources`: name → how much of it each sequence takes, int [S].

        Returns:
            The bins that are ready, in the order in which they left.

        Raises:
            InvalidRequestError: ids or lengths are invalid, or a group is too long for a bin. None of them is kept.
            TransientError: no server answered before the deadline. The sequences are kept: do not send them again, go
                on with others or with `flush`.
        """
        new_ids, new_lengths = integers("ids", ids), integers("lengths", lengths)
        if len(new_ids) != len(new_lengths):
            raise invalid("lengths", f"holds {len(new_lengths)} for {len(new_ids)} ids")
        if new_ids and not -(2**63) <= min(new_ids) <= max(new_ids) < 2**63:
            raise invalid("ids", "must be 64-bit integers")
        self._attempts.begin()
        self._retrying(self._open)  # refused options are named before lengths
        rule = self._check_lengths(new_lengths)
        numbers = range(self._num_sent, self._num_sent + len(new_ids))
        taken = self._taken(amounts or {}, len(new_ids))
        self._held.update(zip(numbers, self._in_groups(new_ids, new_lengths, groups, rule, taken), strict=True))
        self._num_sent += len(new_ids)
        self._unsent.update(dict.fromkeys(numbers))
        try:
            self._retrying(self._send_unsent)
        except TransientError:
            raise
        except PackhorseError:
            for number in numbers:  # the server refused them: forget them
                self._held.pop(number, None)
            raise
        return self._take_ready()

    def flush(self) -> list[Bin]:
        """Returns all bins, also those that are not full. You may send more sequences afterwards.

        Raises:
            InvalidRequestError: there are fewer sequences than bins for all ranks, and no bin may be empty. Nothing is
                lost: send more, and flush again.
            TransientError: no server answered before the deadline; nothing is lost, flush again.
        """

        def flush() -> None:
            if self._held:
                self._send_unsent()
                self._exchange(pb.PackStreamRequest(flush=pb.PackStreamFlush()))
                if self._held:
                    raise DamagedAnswerError(f"{self._transport.target} kept {len(self._held)} sequences at a flush")

        self._attempts.begin()
        self._retrying(flush)
        return self._take_ready()

    def close(self) -> None:
        """Ends the call. Sequences that are in no bin yet are kept, and sent again if you use the object again."""
        if self._requests is not None:
            self._requests.put(None)
        close = getattr(self._responses, "close", None)
        self._requests = self._responses = None
        if close is not None:
            close()

    def __repr__(self) -> str:
        return (
            f"<PackStream at {self._transport.target}: max_seq_len {self._options.max_seq_len:,}, "
            f"{self._num_sent:,} sequences sent, {self.num_held:,} held back>"
        )

    def __enter__(self) -> "PackStream":
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _open(self) -> None:
        if self._responses is not None:
            return
        self._requests = queue.SimpleQueue()
        requests = iter(self._requests.get, None)
        self._responses = self._transport.stream(PACK_STREAM, requests, self._attempts.timeout_seconds)
        self._unsent = dict.fromkeys(self._held)
        self._exchange(pb.PackStreamRequest(options=self._options))

    def _send_unsent(self) -> None:
        self._open()
        while self._unsent:
            numbers: list[int] = []
            for number in self._unsent:
                if len(numbers) >= SEQUENCES_PER_MESSAGE and self._held[number].group == number:
                    break
                numbers.append(number)
            first = numbers[0]
            groups = [self._held[number].group - first for number in numbers]
            sequences = pb.PackStreamSequences(
                ids=numbers,
                lengths=[self._held[number].length for number in numbers],
                groups=[] if groups == [number - first for number in numbers] else groups,
                amounts=[
                    self._held[number].amounts[at] for at in range(len(self._options.budgets)) for number in numbers
                ],
            )
            for number in numbers:  # they come back as unsent when the stream is opened again
                del self._unsent[number]
            self._exchange(pb.PackStreamRequest(sequences=sequences))
            if numbers[-1] > self._last_packed:  # those that are sent again bring nothing new
                self._last_packed = numbers[-1]
                self._attempts.succeeded()

    def _exchange(self, request: pb.PackStreamRequest) -> None:
        """Sends a message and takes in the bins of its response."""
        assert self._requests is not None
        assert self._responses is not None
        self._requests.put(request)
        response = next(self._responses, None)
        if response is None:
            raise ServerUnavailableError(f"{self._transport.target} ended the stream early")
        block = decode_bins(response.bins, pb.ID_TYPE_INT64)
        self._check(block, response.num_sequences_held)
        self._check_caps(block)
        for numbers, lengths in block.bins():
            ids = [self._held.pop(number).id for number in numbers.tolist()]
            self._ready.append((np.array(ids, dtype=np.int64), lengths))
        if len(block):
            self._attempts.succeeded()

    def _check(self, block: BinBlock, num_held: int) -> None:
        """Refuses an answer if its bins differ from the sequences that were sent."""
        came = dict(zip(block.ids.tolist(), block.lengths.tolist(), strict=True))
        if (
            len(came) != len(block.ids)
            or len(block) % max(self._options.num_bins_multiple_of, 1)
            or not came.keys() <= self._held.keys() - self._unsent.keys()
            or any(self._held[number].length != length for number, length in came.items())
            or self._is_torn(block)
            or num_held != len(self._held) - len(self._unsent) - len(came)
        ):
            raise DamagedAnswerError(
                f"{self._transport.target} returned other sequences, lengths or numbers of them than it was sent"
            )

    def _check_caps(self, block: BinBlock) -> None:
        """Refuses bins over a cap, as a server makes that does not know resources."""
        for at, budget in enumerate(self._options.budgets):
            for numbers, _ in block.bins():
                if sum(self._held[number].amounts[at] for number in numbers.tolist()) > budget.cap:
                    raise too_old("resources")

    def _taken(self, amounts: Mapping[str, ArrayLike | Iterable[int]], num: int) -> list[tuple[int, ...]]:
        """Returns what each sequence takes of each budget."""
        names = [budget.name for budget in self._options.budgets]
        if not isinstance(amounts, Mapping) or sorted(amounts) != sorted(names):
            raise invalid("amounts", f"must have a list for each resource of the stream: {', '.join(names) or 'none'}")
        columns = [integers(f"the amounts of {name!r}", amounts[name]) for name in names]
        for budget, column in zip(self._options.budgets, columns, strict=True):
            if len(column) != num:
                raise invalid("amounts", f"holds {len(column)} of {budget.name!r} for {num} ids")
            if column and not 0 <= min(column) <= max(column) <= budget.cap:
                raise invalid("amounts", f"of {budget.name!r} must be in [0, {budget.cap}], its cap")
        return list(zip(*columns, strict=True)) if columns else [()] * num

    def _is_torn(self, block: BinBlock) -> bool:
        """Whether some group did not come whole, in one bin and in its order."""
        if not self._has_groups:
            return False
        for numbers, _ in block.bins():
            previous = -1
            for number in [*numbers.tolist(), -1]:
                goes_on = previous + 1 in self._held and self._held[previous + 1].group <= previous
                is_first = number < 0 or self._held[number].group == number
                if (goes_on and number != previous + 1) or not (goes_on or is_first):
                    return True
                previous = number
        return False

    def _in_groups(
        self,
        ids: list[int],
        lengths: list[int],
        groups: ArrayLike | Iterable[int] | None,
        rule: RoomRule,
        amounts: list[tuple[int, ...]],
    ) -> list[_Sequence]:
        """Returns sequences with own numbers from `_num_sent` on, group by group; refuses a group that fits no bin."""
        if groups is None:
            return [
                _Sequence(number, length, self._num_sent + index, taken)
                for index, (number, length, taken) in enumerate(zip(ids, lengths, amounts, strict=True))
            ]
        keys = integers("groups", groups)
        if len(keys) != len(ids):
            raise invalid("groups", f"holds {len(keys)} numbers for {len(ids)} ids")
        members: dict[int, list[int]] = {}
        for index, key in enumerate(keys):
            members.setdefault(key, []).append(index)
        sequences: list[_Sequence] = []
        for key, indices in members.items():
            room = sum(int(rule.room(lengths[index])) for index in indices)
            if room > rule.max_seq_len:
                raise invalid(
                    "groups",
                    f"group {key} takes {room} tokens together, over max_seq_len {rule.max_seq_len}: raise it, or "
                    "leave out sequences of the group",
                )
            if len(indices) > 1 and self._options.max_sequences_per_bin:
                raise invalid("groups", "max_sequences_per_bin does not go with groups: leave it None")
            self._has_groups |= len(indices) > 1
            first = self._num_sent + len(sequences)
            sequences += [_Sequence(ids[index], lengths[index], first, amounts[index]) for index in indices]
        return sequences

    def _check_lengths(self, lengths: list[int]) -> RoomRule:
        """Refuses all lengths before any is sent; the service would refuse message by message."""
        options = self._options
        rule = RoomRule(options.max_seq_len, align=max(options.align, 1), extra_tokens=options.extra_tokens)
        for length in set(lengths):
            if not 1 <= length <= rule.longest:
                raise invalid(
                    "lengths",
                    f"{length} is not in [1, {rule.longest}], which fits max_seq_len {rule.max_seq_len} with align "
                    f"{rule.align} and extra_tokens {rule.extra_tokens}",
                )
        return rule

    def _take_ready(self) -> list[Bin]:
        ready, self._ready = self._ready, []
        return ready

    def _retrying(self, attempt: Callable[[], None]) -> None:
        try:
            self._attempts.run(attempt, let_go=self.close)
        except BaseException:  # a response may be on its way that no one will read
            self.close()
            raise
