"""`PackingClient`: packing lengths without a dataset, all at once or as they arrive.

Owns these methods of a `Client`, and what it needs for any: its connection, retries and end. Leaves methods that read
datasets to `api`, messages to `transport/requests`, and a stream's sequences to `streams/pack_stream`.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from packhorse.client.errors import PackhorseError
from packhorse.client.options import DEFAULT_PACKING, PackOptions
from packhorse.client.streams.pack_stream import PackStream
from packhorse.client.transport.answers import read_packing
from packhorse.client.transport.methods import PACK_SEQUENCES, Method, Transport
from packhorse.client.transport.requests import (
    NO_RESOURCES,
    Resources,
    balance_message,
    budget_messages,
    integers,
    message,
)
from packhorse.client.transport.retries import with_retries
from packhorse.formats.retry_policy import RetryPolicy
from packhorse.topology import DEFAULT_COST_LINEAR, Balance
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import WIRE_VERSION

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")
_Answer = TypeVar("_Answer")


class PackingClient:
    """A client that needs no dataset; `Client` adds the methods that read one."""

    def __init__(self, transport: Transport, retry: RetryPolicy) -> None:
        self._connection = transport
        self._is_closed = False
        self._retry = retry

    @property
    def target(self) -> str:
        """The target that `connect` was given."""
        return self._connection.target

    def pack_sequences(
        self,
        lengths: Sequence[int] | NDArray[np.integer],
        max_seq_len: int,
        *,
        num_bins_multiple_of: int = 1,
        packing: PackOptions = DEFAULT_PACKING,
        separate_by: Sequence[int] | NDArray[np.integer] | None = None,
        groups: Sequence[int] | NDArray[np.integer] | None = None,
        resources: Resources = NO_RESOURCES,
        seed: int | None = None,
        align: int = 1,
        extra_tokens: int = 0,
    ) -> list[NDArray[np.int64]]:
        """Packs lengths at once on the server, without a dataset.

        Example:
            >>> from packhorse.client import connect
            >>> with connect("embedded:datasets") as client:
            ...     [indices.tolist() for indices in client.pack_sequences([5, 3, 3, 5], max_seq_len=8)]
            [[0, 1], [3, 2]]

        Args:
            lengths: int [S], in tokens, each in [1, max_seq_len]; at most 1,000,000.
            max_seq_len: a bin's capacity in tokens.
            num_bins_multiple_of: the number of bins becomes a multiple of this, by splitting the fullest bins, so that
                `bins[rank::num_bins_multiple_of]` are equally many for every rank, and none is empty. At most 65,536.
            packing: the packer, its limits, and how bins are balanced between these ranks.
            separate_by: int [S], in [0, 2^32), at most 1,024 distinct: sequences with different numbers share no bin.
            groups: int [S], in [0, 2^32): sequences with equal numbers share a bin, next to each other in their order;
                not together with `max_sequences_per_bin`.
            resources: name of what sequences take of a bin beside tokens → (how much of it each takes, int [S]; the
                most that a bin holds), as in `{"tiles": (num_tiles, 48)}`. The packer is then best-fit.
            seed: shuffles equal lengths; None keeps their order.
            align: every sequence takes a multiple of this many tokens in its bin.
            extra_tokens: tokens that every sequence takes beside its own, before rounding (BOS, EOS).

        Returns:
            Each bin's indices into `lengths`: int64.

        Raises:
            InvalidRequestError: a field is out of range, or there are too few sequences for `num_bins_multiple_of`.
            RequestTooLargeError: there are too many sequences for one message.
            VersionMismatchError: the server is too old for groups or resources.
        """
        request = message(
            pb.PackSequencesRequest,
            lengths=integers("lengths", lengths),
            max_seq_len=max_seq_len,
            algorithm=packing.algorithm,
            max_sequences_per_bin=packing.max_sequences_per_bin or 0,
            num_bins_multiple_of=num_bins_multiple_of,
            balance=balance_message("balance", packing.balance),
            cost_linear=packing.cost_linear,
            allow_empty=packing.allow_empty,
            separate_by=None if separate_by is None else integers("separate_by", separate_by),
            groups=None if groups is None else integers("groups", groups),
            budgets=budget_messages(resources),
            seed=seed,
            align=align,
            extra_tokens=extra_tokens,
        )

        return self._read(PACK_SEQUENCES, request, lambda answer: read_packing(answer, request))

    def pack_stream(
        self,
        max_seq_len: int,
        *,
        lookahead_sequences: int = 1000,
        max_sequences_per_bin: int | None = None,
        num_bins_multiple_of: int = 1,
        accumulation: int = 1,
        balance: Balance | str = Balance.NONE,
        cost_linear: int = DEFAULT_COST_LINEAR,
        allow_empty: bool = False,
        align: int = 1,
        extra_tokens: int = 0,
        resources: Mapping[str, int] = MappingProxyType({}),
    ) -> PackStream:
        """Packs sequences as they arrive (rollouts), and returns full bins meanwhile.

        Example:
            >>> from packhorse.client import connect
            >>> with connect("embedded:datasets") as client, client.pack_stream(max_seq_len=8) as stream:
            ...     bins = stream.send(ids=[10, 11, 12], lengths=[5, 3, 4]) + stream.flush()
            >>> [ids.tolist() for ids, lengths in bins]
            [[10, 11], [12]]

        Args:
            max_seq_len: a bin's capacity in tokens.
            lookahead_sequences: the most sequences, those of groups included, that the service holds back to make
                fuller bins, in [1, 10,000].
            max_sequences_per_bin: the most sequences in a bin; None for no limit. Not together with groups.
            num_bins_multiple_of: data-parallel ranks, at most 65,536. Bins come in rounds of a multiple of it, and bin
                k belongs to rank k mod `num_bins_multiple_of`; a flush splits what is left, so that no rank idles.
            accumulation: steps that make one optimizer step. With a balance a round is accumulation ·
                num_bins_multiple_of bins, at most 65,536.
            balance: where the ranks wait for each other within a round; see `PackOptions`.
            cost_linear: see `PackOptions`.
            allow_empty: a flush with fewer sequences than bins adds empty bins instead of raising an error.
            align: every sequence takes a multiple of this many tokens in its bin.
            extra_tokens: tokens that every sequence takes beside its own, before rounding (BOS, EOS).
            resources: name of what sequences take of a bin beside tokens, such as image tiles → the most that a bin
                holds; `send` then takes `amounts`.

        Returns:
            A stream to `send` sequences to and to `flush` at the end; the first of these opens it.

        Raises:
            InvalidRequestError: a number does not fit the protocol. The service refuses other errors at the first
                `send`.
        """
        options = message(
            pb.PackStreamOptions,
            within="options.",
            max_seq_len=max_seq_len,
            lookahead_sequences=lookahead_sequences,
            max_sequences_per_bin=max_sequences_per_bin or 0,
            num_bins_multiple_of=num_bins_multiple_of,
            accumulation=accumulation,
            balance=balance_message("options.balance", balance),
            cost_linear=cost_linear,
            allow_empty=allow_empty,
            align=align,
            extra_tokens=extra_tokens,
            wire_version=WIRE_VERSION,
            budgets=budget_messages({name: ((), cap) for name, cap in dict(resources).items()}),
        )
        return PackStream(self._transport, options, self._retry)

    def close(self) -> None:
        """Closes the connections. Later calls fail, and so do calls that other threads are waiting for."""
        self._connection.close()
        self._is_closed = True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.target}>"

    @property
    def _transport(self) -> Transport:
        if self._is_closed:
            raise PackhorseError(f"this client of {self.target} is closed; connect again")
        return self._connection

    def _ask(self, method: Method[_Request, _Response], request: _Request) -> _Response:
        return self._read(method, request, lambda answer: answer)

    def _read(
        self, method: Method[_Request, _Response], request: _Request, read: Callable[[_Response], _Answer]
    ) -> _Answer:
        """Returns what `read` makes of the answer; an answer that it finds damaged is asked for again."""
        return with_retries(
            self._retry,
            lambda seconds: read(self._transport.answer(method, request, seconds)),
            has_answered=lambda: self._transport.has_answered,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
