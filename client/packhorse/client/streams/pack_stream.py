"""Online packing that continues when its server fails: sequences go in as they arrive, full bins come out.

Owns sending: a broken stream reopens, and sends again what is in no bin yet, without loss or repetition. The service
knows sequences only by numbers of this client's own, 0, 1, 2, …, and chooses the bins. Leaves groups and the sequences
in no bin to `_held_sequences`, checks of answers to `_pack_answers`, connections to `transport/grpc_channels`, and
decoding bins to `blocks`.
"""

import queue
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packhorse.client.error_texts import invalid
from packhorse.client.errors import (
    DamagedAnswerError,
    InvalidRequestError,
    PackhorseError,
    ServerUnavailableError,
    TransientError,
)
from packhorse.client.streams._held_sequences import HeldSequences, NewSequences, in_groups, one_by_one
from packhorse.client.streams._pack_answers import PackAnswerChecks
from packhorse.client.streams.blocks import decode_bins
from packhorse.client.transport.methods import PACK_STREAM, Transport
from packhorse.client.transport.requests import integers
from packhorse.client.transport.retries import Attempts
from packhorse.formats.retry_policy import RetryPolicy
from packhorse.topology import RoomRule
from packhorse.v1 import packing_pb2 as pb

Bin: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int32]]
"""(ids int64 [k], lengths int32 [k]) of a bin's k sequences, by descending length; a group stays together, in order."""

SEQUENCES_PER_MESSAGE = 10_000
"""The number of sequences after which a message ends; its last group is completed first."""


class PackStreamBins(list[Bin]):
    """The bins of an answer, and the sequences that came back because the policy's version that wrote them is too old.

    Example:
        >>> from packhorse.client import connect
        >>> with connect("embedded:datasets") as client, client.pack_stream(8, max_staleness=1) as stream:
        ...     bins = stream.send([10], [5], versions=[3]) + stream.send([11], [6], versions=[5]) + stream.flush()
        >>> [ids.tolist() for ids, lengths in bins], bins.evicted.tolist(), stream.num_evicted
        ([[11]], [10], 1)
    """

    evicted: NDArray[np.int64]
    """Ids of sequences that are in no bin: int64 [k], in the order in which they were sent."""

    def __init__(self, bins: Iterable[Bin], evicted: Iterable[int]) -> None:
        super().__init__(bins)
        self.evicted = np.array(list(evicted), dtype=np.int64)

    def __add__(self, other: list[Bin]) -> "PackStreamBins":  # type: ignore[override]
        """Joins the bins of two answers, and their evicted sequences."""
        others = other.evicted.tolist() if isinstance(other, PackStreamBins) else []
        return PackStreamBins([*self, *other], [*self.evicted.tolist(), *others])


class PackStream:
    """Packs sequences as they arrive into full bins. Made by `Client.pack_stream`; use it in a `with` statement.

    The service holds back at most `lookahead_sequences` sequences to make fuller bins; `flush` packs those too. When
    the connection breaks, the stream reopens on any replica and sends every sequence again that no bin has held yet, so
    that each comes exactly once. The bins may then differ from those without the break.

    If the stream packs for D ranks, bin k of all that it has returned belongs to rank k mod D, also after a break: bins
    are returned only in rounds whose size is a multiple of D.

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
        options: the stream's options, which open every call.
        retry: the delays and deadlines.
    """

    def __init__(self, transport: Transport, options: pb.PackStreamOptions, retry: RetryPolicy) -> None:
        self._transport = transport
        self._options = options
        self._attempts = Attempts(retry, has_answered=lambda: transport.has_answered)
        self._held = HeldSequences()
        self._checks = PackAnswerChecks(transport.target, options, self._held)
        self._unsent: dict[int, None] = {}  # own numbers that are not sent over the open call yet, ascending
        self._num_sent = 0
        self._last_taken = -1  # the last own number that the service has ever taken
        self._has_versions = options.HasField("max_staleness") or options.separate_versions
        self._newest_version = 0  # that the trainer has given, of the policy or of a sequence
        self._newest_sent_version = 0  # over the open call
        self._num_evicted = 0
        self._ready: list[Bin] = []
        self._evicted_ids: list[int] = []
        self._requests: queue.SimpleQueue[pb.PackStreamRequest | None] | None = None  # None ends the open call
        self._responses: Iterator[pb.PackStreamResponse] | None = None

    @property
    def num_held(self) -> int:
        """Number of sequences sent that are not in a returned bin yet."""
        return len(self._held)

    @property
    def num_evicted(self) -> int:
        """Number of sequences that came back because their version is too old."""
        return self._num_evicted

    def send(
        self,
        ids: ArrayLike | Iterable[int],
        lengths: ArrayLike | Iterable[int],
        groups: ArrayLike | Iterable[int] | None = None,
        *,
        amounts: Mapping[str, ArrayLike | Iterable[int]] | None = None,
        versions: ArrayLike | Iterable[int] | None = None,
        policy_version: int | None = None,
    ) -> PackStreamBins:
        """Sends sequences, and returns the bins that are full.

        Example:
            >>> from packhorse.client import connect
            >>> with connect("embedded:datasets") as client, client.pack_stream(max_seq_len=8) as stream:
            ...     bins = stream.send([10, 11, 12, 13], [3, 4, 2, 3], groups=[0, 1, 0, 1]) + stream.flush()
            >>> [ids.tolist() for ids, lengths in bins]
            [[11, 13], [10, 12]]

        Args:
            ids: int64 [S], chosen by the trainer; they need not be unique, unless the stream has versions.
            lengths: int [S], in tokens, each in [1, max_seq_len].
            groups: int [S]: sequences of this call with equal numbers share a bin, next to each other in their order;
                not together with max_sequences_per_bin. A group is sent as a whole, so equal numbers in two calls are
                two groups. None makes no groups.
            amounts: for a stream with `resources`: name → each sequence's amount of the resource, int [S].
            versions: for a stream with `max_staleness`: the version of the policy that wrote each sequence, int [S], at
                least 0.
            policy_version: the policy's version now, which never decreases; None for the newest of all sequences.

        Returns:
            The bins that are ready, in the order in which the service made them, and as `evicted` the sequences that
            are too old for a bin.

        Raises:
            InvalidRequestError: ids, lengths or versions are invalid, or a group is too long for a bin. The stream has
                none of these sequences.
            TransientError: no server answered before the deadline. The stream has the sequences and will send them: do
                not send them again, but continue with others or with `flush`.
        """
        new_ids, new_lengths = integers("ids", ids), integers("lengths", lengths)
        if len(new_ids) != len(new_lengths):
            raise invalid("lengths", f"holds {len(new_lengths)} for {len(new_ids)} ids")
        if new_ids and not -(2**63) <= min(new_ids) <= max(new_ids) < 2**63:
            raise invalid("ids", "must be 64-bit integers")
        self._check_policy_version(policy_version)
        new_versions = self._checked_versions(new_ids, versions, policy_version)
        self._attempts.begin()
        self._retrying(self._open)  # first, so that the service refuses wrong options before lengths are checked
        rule = self._room_rule()
        _check_lengths(new_lengths, rule)
        new_amounts = self._checked_amounts(amounts or {}, len(new_ids))
        numbers = range(self._num_sent, self._num_sent + len(new_ids))
        new = NewSequences(new_ids, new_lengths, new_amounts, new_versions)
        if groups is None:
            sequences = one_by_one(new, self._num_sent)
        else:
            sequences = in_groups(new, integers("groups", groups), rule, self._options, self._num_sent)
        self._held.add_all(dict(zip(numbers, sequences, strict=True)))
        self._newest_version = self._newest_with(new_versions, policy_version)
        self._num_sent += len(new_ids)
        self._unsent.update(dict.fromkeys(numbers))
        try:
            self._retrying(self._send_unsent)
        except TransientError:  # the sequences stay held, and the next call sends them
            raise
        except PackhorseError:  # the server refused them: forget those that no bin holds yet
            for number in self._held.keys() & numbers:
                self._held.remove(number)
            raise
        return self._take_ready()

    def flush(self, *, policy_version: int | None = None) -> PackStreamBins:
        """Returns all bins, also those that are not full. You may send more sequences afterwards.

        Args:
            policy_version: as in `send`.

        Raises:
            InvalidRequestError: `policy_version` decreases, or there are fewer sequences than bins for all ranks, and
                no bin may be empty. Nothing is lost: send more, and flush again.
            TransientError: no server answered before the deadline; nothing is lost, flush again.
        """

        def flush_held() -> None:
            if self._held:
                self._send_unsent()
                self._exchange(pb.PackStreamRequest(flush=pb.PackStreamFlush(policy_version=self._version_to_send)))
                if self._held:
                    raise DamagedAnswerError(f"{self._transport.target} kept {len(self._held)} sequences at a flush")

        self._check_policy_version(policy_version)
        self._newest_version = self._newest_with([], policy_version)
        self._attempts.begin()
        self._retrying(flush_held)
        return self._take_ready()

    def close(self) -> None:
        """Ends the call. If you use the stream again, it sends the sequences again that are in no bin yet."""
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
        """Opens a call unless one is open. Then every sequence that is in no bin counts as unsent."""
        if self._responses is not None:
            return
        self._requests = queue.SimpleQueue()
        requests = iter(self._requests.get, None)
        self._responses = self._transport.stream(PACK_STREAM, requests, self._attempts.timeout_seconds)
        self._unsent = dict.fromkeys(self._held)
        self._newest_sent_version = 0
        self._exchange(pb.PackStreamRequest(options=self._options))

    def _send_unsent(self) -> None:
        """Sends all unsent sequences, in messages that end between groups, and then the version if it is newer."""
        self._open()
        while self._unsent:
            numbers = self._numbers_of_next_message()
            for number in numbers:  # before they arrive: if the call breaks, `_open` makes them unsent again
                del self._unsent[number]
            self._exchange(pb.PackStreamRequest(sequences=self._message_of(numbers)))
            if numbers[-1] > self._last_taken:  # progress; sequences that are only sent again do not count
                self._last_taken = numbers[-1]
                self._attempts.succeeded()
        if self._newest_sent_version < self._newest_version:
            only_version = pb.PackStreamSequences(policy_version=self._newest_version)
            self._exchange(pb.PackStreamRequest(sequences=only_version))

    def _numbers_of_next_message(self) -> list[int]:
        """Returns the own numbers of the first unsent sequences; see SEQUENCES_PER_MESSAGE."""
        numbers: list[int] = []
        for number in self._unsent:
            if len(numbers) >= SEQUENCES_PER_MESSAGE and self._held.first_of_group(number) == number:
                break
            numbers.append(number)
        return numbers

    def _message_of(self, numbers: list[int]) -> pb.PackStreamSequences:
        """Returns the message of held sequences, given by their own numbers, under which the service knows them."""
        sequences = [self._held[number] for number in numbers]
        first = numbers[0]
        groups = [self._held.first_of_group(number) - first for number in numbers]
        is_ungrouped = groups == [number - first for number in numbers]
        return pb.PackStreamSequences(
            ids=numbers,
            lengths=[sequence.length for sequence in sequences],
            groups=[] if is_ungrouped else groups,
            amounts=[  # of all sequences for the first budget, then for the next
                sequence.amounts[budget] for budget in range(len(self._options.budgets)) for sequence in sequences
            ],
            versions=[sequence.version for sequence in sequences] if self._has_versions else [],
            policy_version=self._version_to_send,
        )

    def _exchange(self, request: pb.PackStreamRequest) -> None:
        """Sends a message, checks the response, and keeps its bins and evicted ids until `_take_ready`."""
        assert self._requests is not None
        assert self._responses is not None
        self._requests.put(request)
        response = next(self._responses, None)
        if response is None:
            raise ServerUnavailableError(f"{self._transport.target} ended the stream early")
        block = decode_bins(response.bins, pb.ID_TYPE_INT64)
        evicted_numbers = list(response.evicted)
        self._checks.check_sequences(
            block,
            evicted_numbers,
            response.num_sequences_held,
            unsent=self._unsent.keys(),
            oldest_version=self._oldest_allowed_version,
        )
        # Before the bins are checked, because a group may lose only some of its sequences.
        self._evicted_ids += [self._held.remove(number) for number in evicted_numbers]
        self._num_evicted += len(evicted_numbers)
        self._checks.check_bins(block, oldest_version=self._oldest_allowed_version)
        if request.WhichOneof("payload") != "options":  # sequences and flushes come with the version, options without
            self._newest_sent_version = self._newest_version
        for numbers, lengths in block.bins():
            ids = [self._held.remove(number) for number in numbers.tolist()]
            self._ready.append((np.array(ids, dtype=np.int64), lengths))
        if len(block) or evicted_numbers:
            self._attempts.succeeded()

    @property
    def _oldest_allowed_version(self) -> int:
        """The oldest version of a sequence that a bin may hold."""
        return self._newest_version - self._options.max_staleness if self._options.HasField("max_staleness") else 0

    @property
    def _version_to_send(self) -> int | None:
        """The newest version, for a message; None for a stream without versions."""
        return self._newest_version if self._has_versions else None

    def _check_policy_version(self, policy_version: int | None) -> None:
        """Raises an InvalidRequestError if a given version is older than one before, or the stream has no versions."""
        if policy_version is None:
            return
        if not self._has_versions:
            raise _no_versions_error()
        if policy_version < self._newest_version:
            raise invalid("policy_version", f"{policy_version} goes back: the stream has seen {self._newest_version}")

    def _checked_versions(
        self, ids: list[int], versions: ArrayLike | Iterable[int] | None, policy_version: int | None
    ) -> list[int]:
        """Returns the version of each sequence, 0 in a stream without versions; an InvalidRequestError if one is wrong.

        Versions need unique ids, because evicted sequences come back by their id.
        """
        if not self._has_versions:
            if versions is not None:
                raise _no_versions_error()
            return [0] * len(ids)
        new_versions = [] if versions is None else integers("versions", versions)
        if len(new_versions) != len(ids):
            raise invalid(
                "versions", f"holds {len(new_versions)} numbers for {len(ids)} ids of a stream with max_staleness"
            )
        held_ids = {sequence.id for sequence in self._held.values()}
        for sequence_id, version in zip(ids, new_versions, strict=True):
            if sequence_id in held_ids:
                raise invalid(
                    "ids", f"holds {sequence_id}, which is sent already: what is evicted comes back by its id"
                )
            held_ids.add(sequence_id)
            if version < 0 or (policy_version is not None and version > policy_version):
                raise invalid(
                    "versions", f"says {version} of sequence {sequence_id}, and must be in [0, policy_version]"
                )
        return new_versions

    def _newest_with(self, versions: list[int], policy_version: int | None) -> int:
        """Returns the newest version known, with those of a call."""
        return max(self._newest_version, policy_version or 0, *versions)

    def _checked_amounts(
        self, amounts: Mapping[str, ArrayLike | Iterable[int]], num_sequences: int
    ) -> list[tuple[int, ...]]:
        """Returns each sequence's amounts of the stream's resources, in the order of its budgets.

        Args:
            amounts: as in `send`.
            num_sequences: the number of sequences of the call.
        """
        names = [budget.name for budget in self._options.budgets]
        if not isinstance(amounts, Mapping) or sorted(amounts) != sorted(names):
            raise invalid("amounts", f"must have a list for each resource of the stream: {', '.join(names) or 'none'}")
        columns = [integers(f"the amounts of {name!r}", amounts[name]) for name in names]
        for budget, column in zip(self._options.budgets, columns, strict=True):
            if len(column) != num_sequences:
                raise invalid("amounts", f"holds {len(column)} of {budget.name!r} for {num_sequences} ids")
            if column and not 0 <= min(column) <= max(column) <= budget.cap:
                raise invalid("amounts", f"of {budget.name!r} must be in [0, {budget.cap}], its cap")
        return list(zip(*columns, strict=True)) if columns else [()] * num_sequences

    def _room_rule(self) -> RoomRule:
        """Returns the rule that computes rooms from lengths."""
        align = max(self._options.align, 1)  # 0 on the wire means 1: no alignment
        return RoomRule(self._options.max_seq_len, align=align, extra_tokens=self._options.extra_tokens)

    def _take_ready(self) -> PackStreamBins:
        """Returns the bins that have come since the last call of this method, and what was evicted."""
        ready = PackStreamBins(self._ready, self._evicted_ids)
        self._ready, self._evicted_ids = [], []
        return ready

    def _retrying(self, attempt: Callable[[], None]) -> None:
        """Runs an attempt until it succeeds or the deadline passes; each failure closes the call."""
        try:
            self._attempts.run(attempt, on_failure=self.close)
        except BaseException:  # the call is out of step: its response may still arrive, and nobody would read it
            self.close()
            raise


def _check_lengths(lengths: list[int], rule: RoomRule) -> None:
    """Raises an InvalidRequestError if a length does not fit a bin.

    The service would check them message by message, when earlier messages are already packed.
    """
    for length in set(lengths):
        if not 1 <= length <= rule.longest:
            raise invalid(
                "lengths",
                f"{length} is not in [1, {rule.longest}], which fits max_seq_len {rule.max_seq_len} with align "
                f"{rule.align} and extra_tokens {rule.extra_tokens}",
            )


def _no_versions_error() -> InvalidRequestError:
    """Returns the error for a version that is given to a stream without versions."""
    return invalid("versions", "need a stream that uses them: give pack_stream max_staleness")
