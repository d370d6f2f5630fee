"""An open stream: which steps its next block has, and the block's message.

Owns how large blocks are. Blocks may be made in parallel, and the result is the same as in sequence. Leaves the request
to `stream_request`, arrays to `messages`, and when and in which thread a block is made to `servicer`.
"""

import threading
import time
from collections.abc import Callable

from packhorse.epoch import Bins
from packhorse.server.base.time_slices import TimeSlices
from packhorse.server.datasets.corpora import Corpora
from packhorse.server.datasets.protocols import Datasets
from packhorse.server.methods import sizes
from packhorse.server.methods._sent_templates import NumberedTemplates, SentTemplates
from packhorse.server.methods.messages import as_declared, components_in, encode, encode_tokens
from packhorse.server.methods.stream_request import StreamRequest
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import block_context, stream_positions

BLOCK_BYTES = 1 << 20
"""Size that a stream's later blocks grow to while few streams are open."""

LEAST_BLOCK_BYTES = 16 << 10
"""Size that a stream's blocks grow to while very many streams are open."""

UNREAD_BYTES = 128 << 10
"""Bytes that a stream can send although its client reads nothing: its flow-control window and the sockets take them.
Until more was sent, the client's pace is unknown, and blocks stay as small as LEAST_BLOCK_BYTES."""

STREAMS_BYTES = 16 << 20
"""Bytes of one block of every stream, all together. A stream's memory is about four times its block: one as a message,
two as bytes on their way, and the next block. If its client waits for the next one, there is one more."""

GROWTH = 4
"""Steps of a block, as a multiple of those of the block before, until blocks are large enough."""

BLOCK_SECONDS = 30.0
"""Longest time that a client should need for one block. Stages and takedowns cannot affect bins already sent."""


class OpenStream:
    """A stream's blocks, taken one after the other and made in any threads.

    Args:
        request: checked.
        catalog: the datasets.
        corpora: the tokens, if the request asks for them.
        note: called with the end of every block's positions, exclusive, counted without skipped ones.
        num_streams: returns how many streams are open now, including this one.
    """

    def __init__(
        self,
        request: StreamRequest,
        catalog: Datasets,
        corpora: Corpora,
        note: Callable[[int], None],
        num_streams: Callable[[], int],
    ) -> None:
        self._request = request
        self._catalog = catalog
        self._corpora = corpora
        self._note = note
        self._num_streams = num_streams
        self._steps = request.steps
        self._steps_of_last_block = 0
        self._taken_at = 0.0  # when the last block was taken, by `time.monotonic`
        self._sent = SentTemplates()
        self._order = threading.Condition()  # held to note progress, and to number templates block after block
        self._next_step = request.steps.start
        self._is_over = False
        self._step_bytes = 0.0  # of the last block, with its tokens
        catalog.follow(request.progress)

    @property
    def with_tokens(self) -> bool:
        """Whether blocks bring tokens, which takes reading."""
        return self._request.with_tokens

    @property
    def header(self) -> pb.StreamHeader:
        """The first message."""
        return self._request.header

    def take(self) -> range:
        """Returns the steps of the next block: one for the first block, then more and more; empty after the last."""
        request = self._request
        client_reads = len(request.steps) - len(self._steps) >= self._steps_per_block(UNREAD_BYTES)
        num_bytes = block_bytes(self._num_streams()) if client_reads else LEAST_BLOCK_BYTES
        most_steps = min(request.most_steps, self._steps_per_block(num_bytes))
        now = time.monotonic()
        num_steps = 1
        if self._steps_of_last_block:
            num_steps = min(next_steps(self._steps_of_last_block, now - self._taken_at), most_steps)
        self._steps_of_last_block, self._taken_at = num_steps, now
        taken, self._steps = self._steps[:num_steps], self._steps[num_steps:]
        return taken

    def _steps_per_block(self, num_bytes: int) -> int:
        """Returns how many steps fill a block of `num_bytes` on average, and fit into a message in any case."""
        request = self._request
        average_bytes = self._step_bytes or request.batch_size * sizes.average_bytes_per_bin(
            request.dataset, with_tokens=request.with_tokens
        )
        most_bytes = request.batch_size * sizes.most_bytes_per_bin(request.dataset, with_tokens=request.with_tokens)
        return max(1, min(int(num_bytes / average_bytes), sizes.MAX_MESSAGE_BYTES // most_bytes))

    def is_arranged(self, steps: range | None = None) -> bool:
        """Whether a block can be made without arranging optimizer steps first; None for the next step."""
        return self._request.assignment.is_arranged(self._steps[:1] if steps is None else steps)

    def arrange_in_slices(self, steps: range) -> TimeSlices[None]:
        """Arranges the optimizer steps of a block before it is made: it takes long, and is done once for all ranks."""
        for _ in self._request.assignment.arrange(steps):
            yield 0

    def make(self, steps: range) -> pb.StreamBinsResponse | None:
        """Makes the block of steps from `take`; returns None if the stream ends before it.

        Blocks may be made in parallel. They wait for each other only to define new templates in order.

        Raises:
            ServiceError: the dataset's files were altered.
        """
        message = None
        try:
            message = self._make_block(steps)
        finally:
            if message is None:
                self.close()
        return message

    def is_current(self) -> bool:
        """Whether the stream continues. After a change of its mixture's or a takedown's file, the client reopens it."""
        request, catalog = self._request, self._catalog
        if not catalog.is_current(request.dataset):
            return False
        return catalog.takedown(request.dataset, is_open=True) is request.takedown

    def close(self) -> None:
        """Ends the stream: blocks that wait for an earlier one in `make` return None."""
        with self._order:
            self._is_over = True
            self._order.notify_all()

    def _make_block(self, steps: range) -> pb.StreamBinsResponse | None:
        """Does the work of `make`, which closes the stream if this returns None or raises."""
        request, dataset = self._request, self._request.dataset
        self._note_end(request.end_of(steps[-1]))
        if not self.is_current():
            return None
        bins = as_declared(request.assignment.bins(steps, request.rank), dataset.manifest)
        self._catalog.confirm(dataset, components_in(bins))
        numbered = self._numbered(bins, steps)
        if numbered is None:
            return None
        message = pb.StreamBinsResponse()
        block = message.block
        block.first_step, block.num_steps = steps.start, len(steps)
        block.num_sequences, block.num_tokens = len(bins.ids), bins.num_tokens()
        context = block_context(request.header.checksum, block)
        positions = None
        if not request.assignment.is_in_order(steps):
            positions = stream_positions(request.topology, request.rank, steps.start, len(bins))
        redacted = request.takedown.redacted(
            bins, epoch=request.epoch, seed=request.run_seed, num_bins=request.num_whole_bins, skips=request.skips
        )
        encode(bins, block.bins, context, numbered, positions, redacted)
        if request.with_tokens:
            with self._corpora.reading(dataset):
                tokens = self._corpora.of(dataset).read(bins, redacted)
            has_prefixes = request.header.shares_prefixes
            encode_tokens(tokens, block.tokens, block.bins.checksum, has_prefixes=has_prefixes)
            num_bytes = len(block.tokens.tokens) + len(block.tokens.loss_mask) + len(block.bins.ids)
            self._step_bytes = max(1, num_bytes) / len(steps)
        return message

    def _note_end(self, end: int) -> None:
        """Notes that the stream comes to `end`, exclusive; called before files are looked at, to miss no change."""
        self._note(end)
        with self._order:
            progress = self._request.progress
            progress.position = max(progress.position, self._request.skips.to_whole(end - 1) + 1)

    def _numbered(self, bins: Bins, steps: range) -> NumberedTemplates | None:
        """Numbers templates, after all earlier blocks have; returns None if the stream ends before one of them."""
        with self._order:
            self._order.wait_for(lambda: self._next_step == steps.start or self._is_over)
            if self._next_step != steps.start:
                return None
            numbered = self._sent.numbered(bins)
            self._next_step += len(steps) * steps.step
            self._order.notify_all()
            return numbered


def block_bytes(num_streams: int) -> int:
    """Returns the size that a stream's blocks grow to while `num_streams` are open.

    Example:
        >>> [block_bytes(num_streams) >> 10 for num_streams in (1, 100, 1000, 4000)]
        [1024, 163, 16, 16]
    """
    return min(BLOCK_BYTES, max(LEAST_BLOCK_BYTES, STREAMS_BYTES // max(1, num_streams)))


def next_steps(num_steps: int, seconds: float) -> int:
    """Returns how many steps a stream's next block may have, if the last had `num_steps` and took its client `seconds`.

    Example:
        >>> next_steps(64, 0.5), next_steps(64, 20.0), next_steps(64, 240.0)  # trainers that take ever longer
        (256, 96, 8)
    """
    growth = min(GROWTH, BLOCK_SECONDS / seconds) if seconds > 0 else GROWTH
    return max(1, int(num_steps * growth))
