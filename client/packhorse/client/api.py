"""`Client`: the service's methods as Python calls.

Owns their arguments. Leaves making a client to `connecting`, messages to `transport/requests`, connections to
the transports, resuming to `stream`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from types import TracebackType
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packhorse.client.errors import PackhorseError
from packhorse.client.options import DEFAULT_PACKING, PackOptions
from packhorse.client.streams.blocks import BinBlock, decode_bins
from packhorse.client.streams.pack_stream import PackStream
from packhorse.client.streams.stream import BinStream
from packhorse.client.transport.requests import (
    APPEND_STAGE,
    GET_BINS,
    GET_DATASET,
    LIST_DATASETS,
    LOCATE_SEQUENCES,
    PACK_SEQUENCES,
    SequenceLocation,
    Transport,
    balance_message,
    integers,
    message,
    read_locations,
    read_packing,
    skip_message,
    texts,
    topology_message,
)
from packhorse.client.transport.retries import with_retries
from packhorse.formats.retry_policy import RetryPolicy
from packhorse.topology import DEFAULT_COST_LINEAR, Balance, Skips, Topology
from packhorse.types import DatasetInfo
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import WIRE_VERSION, get_bins_context

_Answer = TypeVar("_Answer")

Weight = int | float | str | Decimal
"""A weight, taken as it is written."""

_IDS_AT_ONCE = 1000
"""Ids that `Client.keys` asks for together: any dataset answers so many."""

DEFAULT_TOPOLOGY = Topology()
"""One rank, one worker, one bin a step."""

NO_SKIPS = Skips()


class Client:
    """The service's methods. Made by `connect`; safe to keep across a fork, and usable in a `with` statement.

    Bins of prepared datasets come from `stream_bins`, `get_bins` and `locate`; `pack_sequences` and `pack_stream` pack
    lengths without a dataset, all at once or as they arrive.

    Example:
        >>> from packhorse.client import connect
        >>> with connect("embedded:datasets") as client:
        ...     client.target
        'embedded:datasets'
    """

    def __init__(self, transport: Transport, retry: RetryPolicy) -> None:
        self._connection = transport
        self._is_closed = False
        self._retry = retry

    @property
    def target(self) -> str:
        """What `connect` was given."""
        return self._connection.target

    def list_datasets(self) -> list[DatasetInfo]:
        """Returns every dataset that is served, by ascending name.

        Example:
            >>> from packhorse.client import connect
            >>> with connect("embedded:datasets") as client:
            ...     sorted(info.name for info in client.list_datasets())[0]
            'corpus'
        """
        request = pb.ListDatasetsRequest()
        response = self._ask(lambda seconds: self._transport.answer(LIST_DATASETS, request, seconds))
        return [DatasetInfo.from_proto(dataset) for dataset in response.datasets]

    def get_dataset(self, name: str) -> DatasetInfo:
        """Returns one dataset; a DatasetNotFoundError where there is none of that name.

        Example:
            >>> from packhorse.client import connect
            >>> with connect("embedded:datasets") as client:
            ...     client.get_dataset("corpus").max_seq_len
            8
        """
        request = message(pb.GetDatasetRequest, name=name)
        return DatasetInfo.from_proto(
            self._ask(lambda seconds: self._transport.answer(GET_DATASET, request, seconds)).dataset
        )

    def append_stage(
        self,
        mixture: str,
        *,
        from_position: int,
        weights: Mapping[str, Weight] | None = None,
        by: str = "bins",
        replace: bool = False,
    ) -> DatasetInfo:
        r"""Appends a stage to a mixture while runs go on: other weights from a position of the run on.

        A server wants a token whose methods name AppendStage. Asking again for what was done already changes nothing.

        Example:
            >>> from packhorse.client import connect
            >>> stages = "epoch_bins = 8\n[[stages]]\nweights = {corpus = 1}\n"
            >>> with open("datasets/two.mixture.toml", "w") as file:
            ...     print(stages, end="", file=file)
            >>> with connect("embedded:datasets") as client:
            ...     info = client.append_stage("two", from_position=20, weights={"corpus": "0.5"})
            >>> [stage.first_position for stage in info.stages]
            [0, 20]
            >>> with connect("embedded:datasets") as client:  # nobody has come to position 20
            ...     info = client.append_stage("two", from_position=20, replace=True)
            >>> [stage.first_position for stage in info.stages]
            [0]

        Args:
            mixture: its name.
            from_position: epoch · num_bins + the position there; beyond where the last stage begins that stays, and at
                or beyond everything that was handed out.
            weights: component → weight of at least 0, taken as it is written: 0.7 is 7/10. New components are datasets
                of the server. None only takes stages back, with `replace`.
            by: whether weights are shares of "bins" or of "tokens".
            replace: takes back the stages that begin at the position or beyond, first.

        Returns:
            The mixture as it is now.

        Raises:
            PositionPassedError: bins behind the position have been handed out; says how far the runs have come.
            AccessDeniedError: the token is not for this.
            NotImplementedByServerError: the server has no tokens, or cannot write its data root.
            InvalidRequestError: the name is no mixture's, or the stage cannot follow the others; says why.
            ValueError: weights are empty.
        """
        if replace and weights is not None and not weights:
            raise ValueError("weights must give components numbers; leave them out to take stages back")
        request = message(
            pb.AppendStageRequest,
            dataset=mixture,
            from_position=from_position,
            weights=[
                pb.ComponentWeight(component=name, weight=str(weight)) for name, weight in (weights or {}).items()
            ],
            by=by,
            replace=replace,
        )
        return DatasetInfo.from_proto(
            self._ask(lambda seconds: self._transport.answer(APPEND_STAGE, request, seconds)).dataset
        )

    def stream_bins(
        self,
        dataset: str,
        *,
        epoch: int = 0,
        seed: int = 0,
        rank: int = 0,
        worker: int = 0,
        topology: Topology = DEFAULT_TOPOLOGY,
        skip: Skips = NO_SKIPS,
        first_step: int = 0,
        expected_digest: str = "",
    ) -> BinStream:
        """Streams the bins of one (epoch, rank, worker).

        Example:
            >>> from packhorse.client import connect
            >>> with connect("embedded:datasets") as client, client.stream_bins("corpus", seed=1) as stream:
            ...     for block in stream:
            ...         print(block.steps, block.positions, block.ids)
            range(0, 1) [0] [3 2]
            range(1, 2) [1] [0 1]

        Args:
            dataset: its name.
            epoch: 0-based.
            seed: of the run, in [0, 2^64).
            rank: data-parallel rank, in [0, world_size).
            worker: dataloader worker within the rank, in [0, workers_per_rank).
            topology: the shape of the run, the same for every rank and worker. Its start_position is where step 0
                begins: a cursor's position to resume, under any topology.
            skip: positions to leave out; what is left is numbered again from 0.
            first_step: steps below it are left out.
            expected_digest: refuse a dataset with another digest; empty for any.

        Returns:
            An iterator of BinBlock; nothing is requested before its header or first block is asked for.

        Raises:
            InvalidRequestError: a number does not fit the protocol (others are refused by the service, when the
                stream is opened).
        """
        request = message(
            pb.StreamBinsRequest,
            dataset=dataset,
            epoch=epoch,
            seed=seed,
            topology=topology_message(topology),
            rank=rank,
            worker=worker,
            skip=skip_message(skip),
            first_step=first_step,
            expected_digest=expected_digest,
            wire_version=WIRE_VERSION,
        )
        return BinStream(self._transport, request, topology, self._retry)

    def get_bins(
        self,
        dataset: str,
        *,
        epoch: int = 0,
        seed: int = 0,
        positions: ArrayLike,
        skip: Skips = NO_SKIPS,
        expected_digest: str = "",
        is_whole: bool = False,
    ) -> BinBlock:
        """Returns the bins at any positions of an epoch, in that order, as one block.

        Example:
            >>> from packhorse.client import connect
            >>> with connect("embedded:datasets") as client:
            ...     block = client.get_bins("corpus", seed=1, positions=[1, 0])
            >>> [ids.tolist() for ids, lengths in block.bins()]
            [[0, 1], [3, 2]]

        Args:
            dataset: its name.
            epoch: 0-based.
            seed: of the run.
            positions: int [N], each in [0, num_bins); repeats allowed.
            skip: positions to leave out; what is left is numbered again from 0.
            expected_digest: refuse a dataset with another digest; empty for any.
            is_whole: whether positions count in the whole epoch, from which no file leaves any out.
        """
        request = message(
            pb.GetBinsRequest,
            dataset=dataset,
            epoch=epoch,
            seed=seed,
            positions=integers("positions", positions),
            skip=skip_message(skip),
            expected_digest=expected_digest,
            wire_version=WIRE_VERSION,
            is_whole=is_whole,
        )

        def ask(seconds: float) -> BinBlock:
            response = self._transport.answer(GET_BINS, request, seconds)
            context = get_bins_context(request, response.digest, response.id_type)
            asked = np.array(request.positions, dtype=np.int64)
            return decode_bins(response.bins, response.id_type, context=context, positions=lambda _: asked)

        return self._ask(ask)

    def locate(
        self,
        dataset: str,
        *,
        epoch: int = 0,
        seed: int = 0,
        ids: Iterable[int] = (),
        keys: Iterable[str] = (),
        topology: Topology | None = None,
        skip: Skips = NO_SKIPS,
        expected_digest: str = "",
    ) -> list[SequenceLocation]:
        """Returns where ids and keys are in an epoch and, when a topology is given, in which stream.

        The answers come in the order of `ids`, then of `keys`; a sequence that was split has one for each piece, one
        after the other by ascending start. Of a mixture an id has answers for each component that has it, and for each
        time that it comes.

        Example:
            >>> from packhorse.client import connect
            >>> with connect("embedded:datasets") as client:
            ...     locations = client.locate("corpus", seed=1, ids=[0, 3], topology=Topology(world_size=2))
            >>> [(location.id, location.step, location.rank) for location in locations]
            [(0, 0, 1), (3, 0, 0)]

        Args:
            dataset: its name.
            epoch: 0-based.
            seed: of the run.
            ids: of sequences.
            keys: of sequences, of a dataset prepared with an `--id-column` of text. Of a mixture, a key has answers for
                each component that has it.
            topology: the shape of the run; None leaves step, rank, worker and slot out.
            skip: positions to leave out; what is left is numbered again from 0.
            expected_digest: refuse a dataset with another digest; empty for any.
        """
        request = message(
            pb.LocateSequencesRequest,
            dataset=dataset,
            epoch=epoch,
            seed=seed,
            ids=integers("ids", ids),
            keys=texts("keys", keys),
            with_keys=True,
            topology=None if topology is None else topology_message(topology),
            skip=skip_message(skip),
            expected_digest=expected_digest,
        )

        def ask(seconds: float) -> list[SequenceLocation]:
            response = self._transport.answer(LOCATE_SEQUENCES, request, seconds)
            return read_locations(response, request)

        return self._ask(ask)

    def keys(self, dataset: str, ids: Iterable[int], *, component: str = "") -> list[str]:
        """Returns the keys of ids, what the owner of the sequences calls them.

        Example:
            >>> from packhorse.client import connect
            >>> with connect("embedded:datasets") as client:
            ...     client.keys("corpus", [0, 3])  # prepared without keys
            ['', '']

        Args:
            dataset: its name.
            ids: of sequences, e.g. those of a batch.
            component: of a mixture, the component that they are of.

        Returns:
            A key for each id, in their order; empty where it has none.
        """
        wanted = integers("ids", ids)
        key_of: dict[int, str] = {}
        distinct = list(dict.fromkeys(wanted))
        for first in range(0, len(distinct), _IDS_AT_ONCE):
            for location in self.locate(dataset, ids=distinct[first : first + _IDS_AT_ONCE]):
                if location.component == component:
                    key_of[location.id] = location.key
        return [key_of.get(each, "") for each in wanted]

    def pack_sequences(
        self,
        lengths: Sequence[int] | NDArray[np.integer],
        max_seq_len: int,
        *,
        num_bins_multiple_of: int = 1,
        packing: PackOptions = DEFAULT_PACKING,
        separate_by: Sequence[int] | NDArray[np.integer] | None = None,
        groups: Sequence[int] | NDArray[np.integer] | None = None,
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
            num_bins_multiple_of: the number of bins is made a multiple of this, by splitting the fullest bins: of
                `bins[rank::num_bins_multiple_of]` every data-parallel rank gets as many, and none is empty. At most
                65,536.
            packing: the packer, its limits, and how bins are balanced between these ranks.
            separate_by: int [S], in [0, 2^32), at most 1,024 distinct: sequences with different numbers share no bin.
                None where all may.
            groups: int [S], in [0, 2^32): sequences with equal numbers share a bin, next to each other in their order;
                without `max_sequences_per_bin`. None where each is packed by itself.
            seed: shuffles equal lengths; None for their order.
            align: every sequence takes a multiple of this many tokens in its bin.
            extra_tokens: tokens that every sequence takes beside its own, before rounding (BOS, EOS).

        Returns:
            Each bin's indices into `lengths`: int64.

        Raises:
            InvalidRequestError: a field is out of range, or there are too few sequences for `num_bins_multiple_of`.
            RequestTooLargeError: there are too many sequences for one message.
            VersionMismatchError: the server is older than groups.
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
            seed=seed,
            align=align,
            extra_tokens=extra_tokens,
        )

        def ask(seconds: float) -> list[NDArray[np.int64]]:
            return read_packing(self._transport.answer(PACK_SEQUENCES, request, seconds), request)

        return self._ask(ask)

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
    ) -> PackStream:
        """Packs sequences as they arrive (rollouts): full bins come back while more are sent.

        Example:
            >>> from packhorse.client import connect
            >>> with connect("embedded:datasets") as client, client.pack_stream(max_seq_len=8) as stream:
            ...     bins = stream.send(ids=[10, 11, 12], lengths=[5, 3, 4]) + stream.flush()
            >>> [ids.tolist() for ids, lengths in bins]
            [[10, 11], [12]]

        Args:
            max_seq_len: a bin's capacity in tokens.
            lookahead_sequences: the most sequences that the service holds back to make fuller bins, in [1, 10,000].
                Every sequence of a group counts.
            max_sequences_per_bin: the most sequences in a bin; None for no limit. There are no groups then.
            num_bins_multiple_of: data-parallel ranks, at most 65,536. With more than one, bins come in rounds of a
                multiple of it, and bin k of the stream belongs to rank k mod `num_bins_multiple_of`; a flush splits
                what is left, so that no rank idles.
            accumulation: steps that make one optimizer step. With a balance a round is accumulation ·
                num_bins_multiple_of bins, at most 65,536.
            balance: where the ranks wait for each other, as in `pack_sequences`, within each round.
            cost_linear: as in `pack_sequences`.
            allow_empty: a flush with fewer sequences than bins adds empty bins instead of raising an error.
            align: every sequence takes a multiple of this many tokens in its bin.
            extra_tokens: tokens that every sequence takes beside its own, before rounding (BOS, EOS).

        Returns:
            A stream to `send` sequences to and to `flush` at the end; nothing is requested before.

        Raises:
            InvalidRequestError: a number does not fit the protocol (others are refused at the first `send`).
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
        )
        return PackStream(self._transport, options, self._retry)

    def close(self) -> None:
        """Lets go of connections. Later calls fail, and those that another thread is waiting for."""
        self._connection.close()
        self._is_closed = True

    def __repr__(self) -> str:
        return f"<Client of {self.target}>"

    @property
    def _transport(self) -> Transport:
        """What calls go through, as long as the client is open."""
        if self._is_closed:
            raise PackhorseError(f"this client of {self.target} is closed; connect again")
        return self._connection

    def _ask(self, attempt: Callable[[float], _Answer]) -> _Answer:
        return with_retries(self._retry, attempt, has_answered=lambda: self._transport.has_answered)

    def __enter__(self) -> "Client":
        """Returns itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the client."""
        self.close()
