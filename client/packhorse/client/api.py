"""`Client`: the service's methods as Python calls.

Owns the arguments of each call, and the client's connection, retries and end. Leaves making a client to `connecting`,
messages to `transport/requests`, resuming to `streams/stream`, and a stream that packs to `streams/pack_stream`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from types import MappingProxyType
from typing import Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packhorse.client._packing_answer import read_packing
from packhorse.client._run_id import run_id_of
from packhorse.client.errors import PackhorseError
from packhorse.client.options import DEFAULT_LOOKAHEAD_SEQUENCES, DEFAULT_PACKING, NO_SKIPS, PackOptions, Staleness
from packhorse.client.streams.blocks import BinBlock, decode_bins
from packhorse.client.streams.numpy_batches import BatchStream
from packhorse.client.streams.pack_stream import PackStream
from packhorse.client.streams.sent_tokens import tokens_of_answer
from packhorse.client.streams.stream import BinStream
from packhorse.client.transport.locations import SequenceLocation, read_locations
from packhorse.client.transport.methods import (
    APPEND_STAGE,
    GET_BINS,
    GET_DATASET,
    LIST_DATASETS,
    LOCATE_SEQUENCES,
    PACK_SEQUENCES,
    Method,
    Transport,
)
from packhorse.client.transport.one_dataset import OneDataset
from packhorse.client.transport.requests import (
    NO_RESOURCES,
    Resources,
    balance_message,
    budget_messages,
    integers,
    message,
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

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")
_Read = TypeVar("_Read")
"""What a method of `Client` makes of a response."""

Weight = int | float | str | Decimal
"""A component's weight, taken as it is written in decimals: 0.7 is 7/10."""

_IDS_AT_ONCE = 1000
"""Ids that `Client.keys` asks for in one request. The more distinct rooms a dataset has, the fewer a server answers; it
answers this many for up to 134,217 rooms."""

DEFAULT_TOPOLOGY = Topology()
"""One rank, one worker, one bin a step."""


class Client:
    """The service's methods. Made by `connect`; safe to keep across a fork, and usable in a `with` statement.

    In this order: `list_datasets` to `append_stage` tell of datasets and change mixtures; `stream_bins` to `keys` read
    prepared datasets; `pack_sequences` and `pack_stream` pack lengths without a dataset, all at once or as they arrive.

    All later answers about a dataset must have the digest of the first one: if replicas serve different data under one
    name, or a folder is replaced, a client never mixes them. It keeps reading the version that it began with if the
    server still has it; connect again to read a newer one.

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
        self._one_dataset = OneDataset()

    def list_datasets(self) -> list[DatasetInfo]:
        """Returns every dataset that is served, by ascending name.

        Example:
            >>> from packhorse.client import connect
            >>> with connect("embedded:datasets") as client:
            ...     sorted(info.name for info in client.list_datasets())[0]
            'corpus'
        """
        answer = self._ask(LIST_DATASETS, pb.ListDatasetsRequest())
        return [DatasetInfo.from_proto(dataset) for dataset in answer.datasets]

    def get_dataset(self, name: str) -> DatasetInfo:
        """Returns one dataset; raises DatasetNotFoundError if there is none with this name.

        Example:
            >>> from packhorse.client import connect
            >>> with connect("embedded:datasets") as client:
            ...     client.get_dataset("corpus").max_seq_len
            8
        """
        request = message(pb.GetDatasetRequest, name=name, dataset_digest=self._bound_digest(name))
        info = DatasetInfo.from_proto(self._ask(GET_DATASET, request).dataset)
        self._one_dataset.bind(name, info.digest, may_change=bool(info.stages))
        return info

    def bind(self, dataset: str, digest: str) -> None:
        """Lets this client read the dataset only with this digest; otherwise the first answer about it decides.

        This does not apply to calls with `expected_digest`. A mixture may get more stages than it had at this digest.

        Example:
            >>> from packhorse.client import connect
            >>> with connect("embedded:datasets") as client:
            ...     client.bind("corpus", "of another")
            ...     client.get_dataset("corpus")
            Traceback (most recent call last):
                ...
            packhorse.client.errors.DigestMismatchError: dataset 'corpus' is not the one that answered this client ...

        Raises:
            DigestMismatchError: the client is already bound to another digest.
        """
        self._one_dataset.bind(dataset, digest)

    def append_stage(
        self,
        mixture: str,
        *,
        from_position: int,
        weights: Mapping[str, Weight] | None = None,
        by: str = "bins",
        replace: bool = False,
    ) -> DatasetInfo:
        r"""Appends a stage to a mixture during a run: other weights from a position on.

        A server asks for a token whose methods name AppendStage. Repeating a call changes nothing.

        Example:
            >>> from packhorse.client import connect
            >>> stages = "epoch_bins = 8\n[[stages]]\nweights = {corpus = 1}\n"
            >>> with open("datasets/two.mixture.toml", "w") as file:
            ...     print(stages, end="", file=file)
            >>> with connect("embedded:datasets") as client:
            ...     info = client.append_stage("two", from_position=20, weights={"corpus": "0.5"})
            >>> [stage.first_position for stage in info.stages]
            [0, 20]

        Args:
            mixture: its name.
            from_position: epoch · num_bins + position; after the beginning of the last stage that stays, and not
                before any bin that was handed out.
            weights: component → weight of at least 0, taken as it is written: 0.7 is 7/10. New components are datasets
                of the server. None with `replace` only removes stages.
            by: "bins" or "tokens": what the weights are shares of.
            replace: first removes the stages that begin at the position or later.

        Returns:
            The mixture as it is now.

        Raises:
            PositionPassedError: bins after the position have been sent; the message says how far runs are.
            AccessDeniedError: the token does not allow it.
            NotImplementedByServerError: the server has no tokens, or cannot write its data root.
            InvalidRequestError: the dataset is no mixture, or the stage cannot follow the others.
            ValueError: `replace` comes with empty weights; to only remove stages, leave weights out.
        """
        if replace and weights is not None and not weights:
            raise ValueError("weights must name a component; leave them out to remove stages")
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
        return DatasetInfo.from_proto(self._ask(APPEND_STAGE, request).dataset)

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
        with_tokens: bool = False,
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
            topology: the shape of the run, the same for every rank and worker. Step 0 begins at its start_position: to
                resume, give a cursor's position.
            skip: positions to leave out; the others are numbered from 0.
            first_step: the first step to send; earlier ones are left out.
            expected_digest: refuse a dataset with another digest; empty for any.
            with_tokens: whether blocks bring the tokens of their bins, from a server that was started with `--tokens`.

        Returns:
            An iterator of BinBlock; reading its header or first block opens the stream.

        Raises:
            InvalidRequestError: a number does not fit the protocol. The service refuses other errors when the stream
                is opened.
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
            dataset_digest=self._bound_digest(dataset, expected_digest),
            run_id=run_id_of(),
            wire_version=WIRE_VERSION,
            with_tokens=with_tokens,
        )
        one_dataset = None if expected_digest else self._one_dataset
        return BinStream(self._transport, request, topology, self._retry, one_dataset)

    def stream_batches(
        self,
        dataset: str,
        *,
        epoch: int = 0,
        seed: int = 0,
        rank: int = 0,
        worker: int = 0,
        topology: Topology = DEFAULT_TOPOLOGY,
        skip: Skips = NO_SKIPS,
        expected_digest: str = "",
    ) -> BatchStream:
        """Streams the batches of one (epoch, rank, worker) as NumPy arrays, for JAX and environments without torch.

        The server sends the tokens: `packhorse serve --tokens`, or an `embedded:` folder that says where they are.

        Example:
            >>> from packhorse.client import connect
            >>> with connect("embedded:datasets") as client, client.stream_batches("corpus", seed=1) as batches:
            ...     print(next(iter(batches))["tokens"].shape)
            (1, 8)

        Args:
            dataset: its name.
            epoch: 0-based.
            seed: as in `stream_bins`.
            rank: as in `stream_bins`.
            worker: as in `stream_bins`.
            topology: as in `stream_bins`; its batch_size is B.
            skip: as in `stream_bins`.
            expected_digest: as in `stream_bins`.

        Raises:
            TokensNotServedError: the server sends no tokens of this dataset; when the first batch is asked for.
        """
        return BatchStream(
            self.stream_bins(
                dataset,
                epoch=epoch,
                seed=seed,
                rank=rank,
                worker=worker,
                topology=topology,
                skip=skip,
                expected_digest=expected_digest,
                with_tokens=True,
            )
        )

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
        with_tokens: bool = False,
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
            skip: positions to leave out; the others are numbered from 0.
            expected_digest: refuse a dataset with another digest; empty for any.
            is_whole: whether positions count in the whole epoch, which takedowns do not shorten.
            with_tokens: as in `stream_bins`.
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
            dataset_digest=self._bound_digest(dataset, expected_digest),
            with_tokens=with_tokens,
        )

        def read(answer: pb.GetBinsResponse) -> BinBlock:
            """Decodes and checks the answer; `with_retries` asks again if this raises a DamagedAnswerError."""
            context = get_bins_context(request, answer.digest, answer.id_type)
            requested_positions = np.array(request.positions, dtype=np.int64)
            tokens = tokens_of_answer(answer, is_wanted=with_tokens)
            block = decode_bins(
                answer.bins,
                answer.id_type,
                context=context,
                positions=lambda num_bins: requested_positions,  # if they are not as many, the answer is damaged
                tokens=tokens,
            )
            self._bind_to_answer(dataset, answer.digest, expected_digest)
            return block

        return self._ask_and_read(GET_BINS, request, read)

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
        """Returns where ids and keys are in an epoch and, with a topology, in which stream.

        Answers come in the order of `ids`, then of `keys`. A split sequence has an answer for each piece, by ascending
        start. In a mixture an id or key has answers for each component that has it, and for each time that it comes.

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
            keys: of sequences, if the dataset was prepared from an `id_column` of text.
            topology: the shape of the run; None leaves step, rank, worker and slot out of the answers.
            skip: positions to leave out; the others are numbered from 0.
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
            dataset_digest=self._bound_digest(dataset, expected_digest),
        )

        def read(answer: pb.LocateSequencesResponse) -> list[SequenceLocation]:
            """Checks the answer; `with_retries` asks again if this raises a DamagedAnswerError."""
            locations = read_locations(answer, request)
            self._bind_to_answer(dataset, answer.digest, expected_digest)
            return locations

        return self._ask_and_read(LOCATE_SEQUENCES, request, read)

    def keys(self, dataset: str, ids: Iterable[int], *, component: str = "") -> list[str]:
        """Returns the keys of ids, such as URLs.

        Example:
            >>> from packhorse.client import connect
            >>> with connect("embedded:datasets") as client:
            ...     client.keys("corpus", [0, 3])  # prepared without keys
            ['', '']

        Args:
            dataset: its name.
            ids: of sequences, e.g. those of a batch.
            component: the component of the ids, if the dataset is a mixture.

        Returns:
            A key for each id, in the same order; "" for an id without a key.
        """
        requested_ids = integers("ids", ids)
        distinct_ids = list(dict.fromkeys(requested_ids))
        key_of: dict[int, str] = {}
        for first in range(0, len(distinct_ids), _IDS_AT_ONCE):
            for location in self.locate(dataset, ids=distinct_ids[first : first + _IDS_AT_ONCE]):
                if location.component == component:
                    key_of[location.id] = location.key
        return [key_of.get(sequence_id, "") for sequence_id in requested_ids]

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
        costs: Sequence[int] | NDArray[np.integer] | None = None,
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
                every rank has equally many, `bins[rank::num_bins_multiple_of]`, and none is empty. At most 65,536.
            packing: the packer, its limits, and how bins are balanced between these ranks.
            separate_by: int [S], in [0, 2^32), at most 1,024 distinct: sequences with different numbers share no bin.
            groups: int [S], in [0, 2^32): sequences with equal numbers share a bin, next to each other in their order;
                not together with `max_sequences_per_bin`.
            resources: name of a second budget besides tokens → (each sequence's amount, int [S]; a bin's maximum), as
                in `{"tiles": (num_tiles, 48)}`. The packer is then best-fit.
            costs: int [S], each sequence's cost, at least 0; None to compute it from the length and
                `packing.cost_linear`. Used only with a balance.
            seed: shuffles equal lengths; None keeps their order.
            align: every sequence takes a multiple of this many tokens in its bin.
            extra_tokens: tokens that every sequence takes besides its own, before rounding (BOS, EOS); -1 leaves out
                the last token.

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
            costs=None if costs is None else integers("costs", costs),
            seed=seed,
            align=align,
            extra_tokens=extra_tokens,
        )

        return self._ask_and_read(PACK_SEQUENCES, request, lambda answer: read_packing(answer, request))

    def pack_stream(
        self,
        max_seq_len: int,
        *,
        lookahead_sequences: int = DEFAULT_LOOKAHEAD_SEQUENCES,
        max_sequences_per_bin: int | None = None,
        num_bins_multiple_of: int = 1,
        accumulation: int = 1,
        balance: Balance | str = Balance.NONE,
        cost_linear: int = DEFAULT_COST_LINEAR,
        allow_empty: bool = False,
        align: int = 1,
        extra_tokens: int = 0,
        resources: Mapping[str, int] = MappingProxyType({}),
        max_staleness: int | Staleness | None = None,
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
            lookahead_sequences: the most sequences that the service holds back to make fuller bins, in [1, 10,000];
                members of groups count too.
            max_sequences_per_bin: the most sequences in a bin; None for no limit. Not together with groups.
            num_bins_multiple_of: data-parallel ranks, at most 65,536. Bins come in rounds whose size is a multiple of
                it, and bin k belongs to rank k mod `num_bins_multiple_of`; a flush splits the last bins, so that no
                rank idles.
            accumulation: steps that make one optimizer step. With a balance a round is accumulation ·
                num_bins_multiple_of bins, at most 65,536.
            balance: where the ranks wait for each other within a round; see `PackOptions`.
            cost_linear: see `PackOptions`.
            allow_empty: a flush with fewer sequences than bins adds empty bins instead of raising an error.
            align: every sequence takes a multiple of this many tokens in its bin.
            extra_tokens: tokens that every sequence takes besides its own, before rounding (BOS, EOS); -1 leaves out
                the last token.
            resources: name of a second budget besides tokens, such as image tiles → a bin's maximum; `send` then takes
                `amounts`.
            max_staleness: how many versions of the policy a sequence may be behind when its bin is sent, or a
                `Staleness` for more options; `send` then takes `versions`. Older sequences come back as `evicted` with
                the answer.

        Returns:
            A stream to `send` sequences to and to `flush` at the end; the first of these opens it.

        Raises:
            InvalidRequestError: a number does not fit the protocol. The service refuses other errors at the first
                `send`.
        """
        staleness = max_staleness if isinstance(max_staleness, Staleness) else Staleness(max_staleness)
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
            # Without amounts: `send` gives those of each sequence.
            budgets=budget_messages({name: ((), cap) for name, cap in dict(resources).items()}),
            max_staleness=staleness.max_versions,
            evict_groups=staleness.evict == "group",
            separate_versions=staleness.separate_versions,
        )
        return PackStream(self._transport, options, self._retry)

    @property
    def target(self) -> str:
        """The target that `connect` was given."""
        return self._connection.target

    def close(self) -> None:
        """Closes the connections. Later calls fail, and so do calls that other threads are waiting for."""
        self._connection.close()
        self._is_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.target}>"

    @property
    def _transport(self) -> Transport:
        """The connection; a PackhorseError after `close`."""
        if self._is_closed:
            raise PackhorseError(f"this client of {self.target} is closed; connect again")
        return self._connection

    def _bound_digest(self, dataset: str, expected_digest: str = "") -> str:
        """Returns the digest that a request names as the dataset's; empty if the caller gave an `expected_digest`."""
        if not isinstance(dataset, str):  # `message` refuses it, and names the field; it may not be hashable
            return ""
        return "" if expected_digest else self._one_dataset.digest_of(dataset)

    def _bind_to_answer(self, dataset: str, digest: str, expected_digest: str) -> None:
        """Binds this client to the digest in an answer, unless the caller gave an `expected_digest`.

        Such an answer does not say whether the dataset is a mixture, whose digest changes with its stages. So another
        digest is no error here: the server compares the one that each request names.
        """
        if not expected_digest:
            self._one_dataset.bind(dataset, digest, may_change=True)

    def _ask(self, method: Method[_Request, _Response], request: _Request) -> _Response:
        """Returns the answer to a request; asks again after a transient failure."""
        return self._ask_and_read(method, request, lambda answer: answer)

    def _ask_and_read(
        self, method: Method[_Request, _Response], request: _Request, read: Callable[[_Response], _Read]
    ) -> _Read:
        """Returns `read(answer)`; asks again after a transient failure, or if `read` finds the answer damaged."""
        return with_retries(
            self._retry,
            lambda seconds: read(self._transport.answer(method, request, seconds)),
            has_answered=lambda: self._transport.has_answered,
        )
