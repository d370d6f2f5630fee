"""A stream of bins that continues when its server fails.

Owns the next step, and reopening the stream at it on any replica. Leaves connections to `transport/grpc_channels`,
decoding to `blocks`, and resuming from a checkpoint to `cursor`.
"""

import logging
from collections.abc import Callable, Iterator
from typing import TypeVar

from packhorse.client.errors import (
    DamagedAnswerError,
    ServerUnavailableError,
    StreamInterruptedError,
    TooManyStreamsError,
    TransientError,
)
from packhorse.client.streams._templates import ReceivedTemplates
from packhorse.client.streams.blocks import BinBlock, decode_bins
from packhorse.client.streams.sent_tokens import tokens_of_answer
from packhorse.client.transport.methods import STREAM_BINS, Transport
from packhorse.client.transport.one_dataset import OneDataset
from packhorse.client.transport.retries import Attempts
from packhorse.formats.retry_policy import RetryPolicy
from packhorse.topology import Topology
from packhorse.types import StreamHeader
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import block_context, header_checksum, stream_positions

_LOG = logging.getLogger(__name__)

_Result = TypeVar("_Result")


class BinStream:
    """Blocks of bins of one (epoch, rank, worker), in order, each exactly once even if servers fail.

    The first block holds one step, later ones more. When the connection breaks, the stream is reopened at the first
    step that has not been returned; a server with another digest is refused.

    Example:
        >>> from packhorse.client import connect
        >>> with connect("embedded:datasets") as client, client.stream_bins("corpus", seed=1) as stream:
        ...     for block in stream:
        ...         print(block.ids, "resume at", stream.position_after(block.steps[-1]))
        [3 2] resume at 1
        [0 1] resume at 2

    Args:
        transport: reaches the service.
        request: the message that opens the stream; its `first_step` is updated as blocks are returned.
        topology: the topology of the request. The attribute `topology` is this one until the stream is open, and then
            the epoch's own (`Topology.of_epoch`).
        retry: the delays and deadlines.
        one_dataset: the digests that the client is bound to, compared with each header's; None if the request has an
            `expected_digest`, which the server compares.
    """

    def __init__(
        self,
        transport: Transport,
        request: pb.StreamBinsRequest,
        topology: Topology,
        retry: RetryPolicy,
        one_dataset: OneDataset | None = None,
    ) -> None:
        self._one_dataset = one_dataset
        self._transport = transport
        self._request = request
        self.topology = topology
        self._attempts = Attempts(retry, has_answered=self._has_answered)
        self._messages: Iterator[pb.StreamBinsResponse] | None = None
        self._header: StreamHeader | None = None
        self._header_message: pb.StreamHeader | None = None  # the same as it was sent, for decoding
        self._templates = ReceivedTemplates()
        self.was_refused = False
        """Whether a server has refused the stream for a while, because it had as many streams as it allows."""

    @property
    def header(self) -> StreamHeader:
        """Facts about the stream; opens it if it is not open yet.

        They may change when the stream is reopened: if a takedown or a mixture was changed meanwhile, the header has
        another digest, and perhaps other components and steps.
        """
        if self._header is None:
            self._attempts.begin()
            self._retrying(self._open)
        assert self._header is not None
        return self._header

    def position_after(self, step: int) -> int:
        """Returns the position to resume at, under any topology, after every rank has consumed `step`."""
        num_bins = self.header.num_bins  # this opens the stream, which sets the epoch's topology
        return self.topology.position_after(step, num_bins)

    def __iter__(self) -> "BinStream":
        return self

    def __next__(self) -> BinBlock:
        """Returns the next block.

        Raises:
            StreamInterruptedError: the stream broke and could not be reopened before the deadline.
            DigestMismatchError: after a break, another dataset answered.
            PackhorseError: the request is refused.
        """
        self._attempts.begin()
        block = self._retrying(self._next_block)
        if block is None:
            raise StopIteration
        self._request.first_step = block.steps.stop
        self._attempts.succeeded()
        return block

    def close(self) -> None:
        """Ends the call. If you iterate a closed stream again, it continues where it was."""
        close = getattr(self._messages, "close", None)
        self._messages = None
        if close is not None:
            close()

    def __enter__(self) -> "BinStream":
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        request, step = self._request, self._next_step()
        steps = "not opened" if self._header is None else f"next step {step:,} of {self._header.num_steps:,}"
        return (
            f"<BinStream of {request.dataset!r} at {self._transport.target}: epoch {request.epoch}, seed "
            f"{request.seed}, rank {request.rank} of {self.topology.world_size}, worker {request.worker} of "
            f"{self.topology.workers_per_rank}, {steps}>"
        )

    def _open(self) -> Iterator[pb.StreamBinsResponse]:
        """Opens a call, checks and stores its header, and returns the iterator of the messages that follow.

        A call whose header is refused is ended at once: its server would otherwise go on serving it while the next
        attempt waits, and for as long as somebody holds the error.
        """
        self._messages = messages = self._transport.stream(STREAM_BINS, self._request, self._attempts.timeout_seconds)
        try:
            self._accept_header(next(messages, None))
        except BaseException as error:
            self.was_refused = self.was_refused or isinstance(error, TooManyStreamsError)
            self.close()
            raise
        return messages

    def _accept_header(self, first: pb.StreamBinsResponse | None) -> None:
        """Checks and stores the header, which a call's first message holds."""
        if first is None or not first.HasField("header"):
            raise ServerUnavailableError(f"{self._transport.target} ended the stream before its header")
        if header_checksum(self._request, first.header) != first.header.checksum:
            raise DamagedAnswerError("the stream's header does not match its checksum: bytes changed on the way")
        if self._one_dataset is not None:
            self._one_dataset.bind(self._request.dataset, first.header.digest, may_change=bool(first.header.components))
        if self._header is None:  # only once: from then on a batch schedule counts in the epoch, not in the run
            self.topology = self.topology.of_epoch(
                self._request.epoch, num_bins=first.header.num_bins, max_seq_len=first.header.max_seq_len
            )
        self._header_message, self._header = first.header, StreamHeader.from_proto(first.header)
        self._request.expected_digest = first.header.digest
        self._templates = ReceivedTemplates()  # the server defines them again in each call
        if self._request.first_step:
            _LOG.info("streaming %s from step %d", self._request.dataset, self._request.first_step)

    def _next_block(self) -> BinBlock | None:
        """Makes one attempt at the next block; returns None at the end of the epoch."""
        if self._messages is None and self._is_complete():
            return None
        try:
            message = next(self._messages or self._open(), None)
        except TransientError:
            if self._is_complete():  # all blocks have come; only the message of the stream's end was lost
                return None
            raise
        if message is None and not self._is_complete():
            raise ServerUnavailableError(f"{self._transport.target} ended the stream early")
        return None if message is None else self._decoded(message.block)

    def _decoded(self, block: pb.StreamBlock) -> BinBlock:
        """Decodes a block; a DamagedAnswerError unless it holds this worker's next steps, with all their bins."""
        header = self._header_message
        assert header is not None
        topology = self.topology
        stride = topology.step_stride
        decoded = decode_bins(
            block.bins,
            header.id_type,
            templates=self._templates,
            positions=lambda num_bins: stream_positions(topology, self._request.rank, block.first_step, num_bins),
            context=block_context(header.checksum, block),
            tokens=tokens_of_answer(block, is_wanted=self._request.with_tokens),
            steps=range(block.first_step, block.first_step + block.num_steps * stride, stride),
        )
        self._check_steps(decoded, header.num_steps)
        return decoded

    def _check_steps(self, block: BinBlock, num_steps: int) -> None:
        """Raises a DamagedAnswerError unless a block holds the worker's next of `num_steps` steps, with all bins."""
        steps = block.steps
        if (
            not steps
            or steps.start != self._next_step()
            or steps[-1] >= num_steps
            or len(block) != self.topology.num_rank_bins(steps)
        ):
            raise DamagedAnswerError(
                f"{self._transport.target} sent {len(block)} bins for {len(steps)} steps from {steps.start}; step "
                f"{self._next_step()} of {num_steps} comes next"
            )
        # If too little is left to fill the epoch's last step, the remainder policy may add empty bins to it, and this
        # rank may get nothing else. A balance deals them out over the whole last optimizer step, which has at most
        # steps_per_optimizer_step steps. Every bin before it holds a sequence.
        first_that_may_be_empty = num_steps - self.topology.steps_per_optimizer_step
        if not len(block.ids) and steps[0] < first_that_may_be_empty:
            raise DamagedAnswerError(
                f"{self._transport.target} sent no sequence for steps {steps[0]} to {steps[-1]} of {num_steps}, "
                "and only the last may be empty"
            )

    def _has_answered(self) -> bool:
        """Whether the service has answered before: this process, or the process that wrote the cursor.

        A request with an `expected_digest` comes from a cursor, or from an earlier answer.
        """
        return bool(self._request.expected_digest) or self._transport.has_answered

    def _is_complete(self) -> bool:
        """Whether all of this worker's steps were returned."""
        return self._header is not None and self._next_step() >= self._header.num_steps

    def _next_step(self) -> int:
        """Returns this worker's next step: the first at or after `first_step` that belongs to it."""
        return self.topology.next_step(self._request.worker, self._request.first_step)

    def _resumable_position(self, step: int) -> int:
        """Returns the position to resume at if this worker's steps before `step` were delivered."""
        if self._header is None:
            return self.topology.start_position
        return self.topology.position_after(step - 1, self._header.num_bins)

    def _retrying(self, attempt: Callable[[], _Result]) -> _Result:
        """Runs an attempt until it succeeds; after the deadline, a StreamInterruptedError says where to resume."""
        try:
            return self._attempts.run(attempt, on_failure=self.close)
        except TransientError as error:
            step = self._next_step()
            position = self._resumable_position(step)
            failure = "could not be opened" if self._header is None else "broke and did not come back"
            repeated = (
                ", where an optimizer step begins; its steps come again"
                if self.topology.steps_per_optimizer_step > 1
                else ""
            )
            raise StreamInterruptedError(
                f"the stream of {self._request.dataset!r} {failure}: {error}; this worker's steps before {step} were "
                f"delivered, resume at position {position} of epoch {self._request.epoch}{repeated}",
                position=position,
                step=step,
            ) from error
