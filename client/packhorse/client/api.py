"""`Client`: the service's methods as Python calls.

Owns those that are about datasets. Leaves the others to `packing`, making a client to `connecting`, messages to
`transport/requests`, and resuming to `streams/stream`.
"""

from collections.abc import Iterable, Mapping
from decimal import Decimal

import numpy as np
from numpy.typing import ArrayLike

from packhorse.client.options import NO_SKIPS
from packhorse.client.packing import PackingClient
from packhorse.client.streams.blocks import BinBlock, decode_bins
from packhorse.client.streams.stream import BinStream
from packhorse.client.transport.answers import SequenceLocation, read_locations
from packhorse.client.transport.methods import (
    APPEND_STAGE,
    GET_BINS,
    GET_DATASET,
    LIST_DATASETS,
    LOCATE_SEQUENCES,
    Transport,
)
from packhorse.client.transport.one_dataset import OneDataset, run_id_of
from packhorse.client.transport.requests import integers, message, skip_message, texts, topology_message
from packhorse.formats.retry_policy import RetryPolicy
from packhorse.topology import Skips, Topology
from packhorse.types import DatasetInfo
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import WIRE_VERSION, get_bins_context

Weight = int | float | str | Decimal
"""A weight, taken as it is written."""

_IDS_AT_ONCE = 1000
"""Ids that `Client.keys` asks for together; every dataset answers this many."""

DEFAULT_TOPOLOGY = Topology()
"""One rank, one worker, one bin a step."""


class Client(PackingClient):
    """The service's methods. Made by `connect`; safe to keep across a fork, and usable in a `with` statement.

    `stream_bins`, `get_bins` and `locate` read prepared datasets; `pack_sequences` and `pack_stream` pack lengths
    without a dataset, all at once or as they arrive.

    The first answer about a dataset binds all later ones: if replicas serve different data under one name, or a folder
    is replaced, a client never mixes them. Versions that a server keeps go on; connect again to read a newer one.

    Example:
        >>> from packhorse.client import connect
        >>> with connect("embedded:datasets") as client:
        ...     client.target
        'embedded:datasets'
    """

    def __init__(self, transport: Transport, retry: RetryPolicy) -> None:
        super().__init__(transport, retry)
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
        bound = self._one_dataset.digest_of(name) if isinstance(name, str) else ""
        request = message(pb.GetDatasetRequest, name=name, dataset_digest=bound)
        info = DatasetInfo.from_proto(self._ask(GET_DATASET, request).dataset)
        self._one_dataset.bind(name, info.digest, may_change=bool(info.stages))
        return info

    def bind(self, dataset: str, digest: str) -> None:
        """Lets this client read a dataset of this digest only, as its first answer about it does otherwise.

        Calls with `expected_digest` say themselves what they want. A mixture may have more stages than the one of the
        digest.

        Example:
            >>> from packhorse.client import connect
            >>> with connect("embedded:datasets") as client:
            ...     client.bind("corpus", "of another")
            ...     client.get_dataset("corpus")
            Traceback (most recent call last):
                ...
            packhorse.client.errors.DigestMismatchError: dataset 'corpus' is not the one that answered this client ...

        Raises:
            DigestMismatchError: it is bound to another one.
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

        A server wants a token whose methods name AppendStage. Repeating a call changes nothing.

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
            by: whether weights are shares of "bins" or of "tokens".
            replace: first removes the stages that begin at the position or later.

        Returns:
            The mixture as it is now.

        Raises:
            PositionPassedError: bins after the position have been sent; the message says how far runs are.
            AccessDeniedError: the token does not allow it.
            NotImplementedByServerError: the server has no tokens, or cannot write its data root.
            InvalidRequestError: the dataset is no mixture, or the stage cannot follow the others.
            ValueError: weights are empty.
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
                resume, a cursor's position.
            skip: positions to leave out; the others are numbered from 0.
            first_step: earlier steps are left out.
            expected_digest: refuse a dataset with another digest; empty for any.

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
            dataset_digest=self._bound(dataset, expected_digest),
            run_id=run_id_of(),
            wire_version=WIRE_VERSION,
        )
        return BinStream(
            self._transport, request, topology, self._retry, None if expected_digest else self._one_dataset
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
            dataset_digest=self._bound(dataset, expected_digest),
        )

        def read(answer: pb.GetBinsResponse) -> BinBlock:
            context = get_bins_context(request, answer.digest, answer.id_type)
            wanted = np.array(request.positions, dtype=np.int64)
            block = decode_bins(answer.bins, answer.id_type, context=context, positions=lambda _: wanted)
            if not expected_digest:
                self._one_dataset.bind(dataset, answer.digest, may_change=True)  # it may be a mixture's
            return block

        return self._read(GET_BINS, request, read)

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

        Answers come in the order of `ids`, then of `keys`. A split sequence has one for each piece, by ascending start.
        In a mixture an id or key has answers for each component that has it, and for each time that it comes.

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
            keys: of sequences, where the dataset's `id_column` was text.
            topology: the shape of the run; None leaves step, rank, worker and slot out.
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
            dataset_digest=self._bound(dataset, expected_digest),
        )

        def read(answer: pb.LocateSequencesResponse) -> list[SequenceLocation]:
            locations = read_locations(answer, request)
            if not expected_digest:
                self._one_dataset.bind(dataset, answer.digest, may_change=True)
            return locations

        return self._read(LOCATE_SEQUENCES, request, read)

    def _bound(self, dataset: str, expected_digest: str) -> str:
        """The digest that a request must name; none where the caller said what it expects."""
        return "" if expected_digest or not isinstance(dataset, str) else self._one_dataset.digest_of(dataset)

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
            component: the component of the ids, where the dataset is a mixture.

        Returns:
            A key for each id, in the same order; empty where it has none.
        """
        wanted = integers("ids", ids)
        key_of: dict[int, str] = {}
        distinct = list(dict.fromkeys(wanted))
        for first in range(0, len(distinct), _IDS_AT_ONCE):
            for location in self.locate(dataset, ids=distinct[first : first + _IDS_AT_ONCE]):
                if location.component == component:
                    key_of[location.id] = location.key
        return [key_of.get(each, "") for each in wanted]
