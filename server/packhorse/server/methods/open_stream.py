"""An open stream: which steps its next block has, and the block's message.

Owns how large blocks are, and that those made side by side are as if made one after the other. Leaves the request to
`stream_request`, arrays to `encoding`, and when and in which thread a block is made to `servicer`.
"""

import threading
import time
from collections.abc import Callable

from packhorse.epoch import Bins
from packhorse.server.base.pieces import Pieces
from packhorse.server.datasets.served import Datasets, Served
from packhorse.server.methods import requests
from packhorse.server.methods.encoding import Numbered, SentTemplates, as_declared, components_in, encode
from packhorse.server.methods.stream_request import StreamRequest
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import block_context, stream_positions

BLOCK_BYTES = 1 << 20
"""What later blocks of a stream grow to, where few streams are open."""

LEAST_BLOCK_BYTES = 16 << 10
"""The same where very many are."""

STREAMS_BYTES = 16 << 20
"""What the blocks of all streams take together, one of each. A stream holds some four times its block: as a message, as
bytes on their way, twice, and the next one; where its client waits for that, one more."""

GROWTH = 4
"""A block has so many times the steps of the one before, until it is large enough."""

BLOCK_SECONDS = 30.0
"""The longest that a client should need for one block. Stages and takedowns cannot affect bins already sent."""


class OpenStream:
    """A stream's blocks, taken one after the other and made in any threads.

    Args:
        asked: what the stream is of.
        catalog: the datasets.
        note: told of every block how far it reaches: one behind its last position of what is left.
        num_streams: how many are open now, this one included.
    """

    def __init__(
        self, asked: StreamRequest, catalog: Datasets, note: Callable[[int], None], num_streams: Callable[[], int]
    ) -> None:
        self._asked = asked
        self._catalog = catalog
        self._note = note
        self._num_streams = num_streams
        self._steps = asked.steps
        self._at_once, self._taken_at = 0, 0.0
        self._sent = SentTemplates()
        self._turns = threading.Condition()
        self._turn = asked.steps.start
        self._is_over = False
        catalog.follow(asked.reader)

    @property
    def header(self) -> pb.StreamHeader:
        """What the stream begins with."""
        return self._asked.header

    def take(self) -> range:
        """Returns the steps of the next block: one of the first, more of later ones; none after the last."""
        most = _steps_per_block(self._asked.dataset, self._asked.batch_size, self._num_streams())
        now = time.monotonic()
        if self._at_once:
            self._at_once = min(next_steps(self._at_once, now - self._taken_at), self._asked.most_steps, most)
        else:
            self._at_once = 1
        self._taken_at = now
        taken, self._steps = self._steps[: self._at_once], self._steps[self._at_once :]
        return taken

    def is_arranged(self, steps: range | None = None) -> bool:
        """Whether steps can be made into a block without arranging windows first; None for the next step."""
        return self._asked.assignment.is_arranged(self._steps[:1] if steps is None else steps)

    def arrange_in_pieces(self, steps: range) -> Pieces[None]:
        """Does for steps what takes long, and is done once for all ranks of a run, before their block is made."""
        for _ in self._asked.assignment.arrange(steps):
            yield 0

    def make(self, steps: range) -> pb.StreamBinsResponse | None:
        """Makes the block of steps that were taken; None where the stream ends before it.

        Blocks may be made at the same time; each waits for its turn only where it says which templates are new.

        Args:
            steps: from `take`.

        Raises:
            ServiceError: the dataset's files are not what they were.
        """
        message = None
        try:
            message = self._made(steps)
        finally:
            if message is None:
                self.close()
        return message

    def is_current(self) -> bool:
        """Whether the stream goes on. Where something changed by file, its reader opens it again where it stands."""
        asked, catalog = self._asked, self._catalog
        return catalog.is_current(asked.dataset) and catalog.takedown(asked.dataset, goes_on=True) is asked.takedown

    def close(self) -> None:
        """Lets go of what waits for its turn: a block before it is not coming."""
        with self._turns:
            self._is_over = True
            self._turns.notify_all()

    def _made(self, steps: range) -> pb.StreamBinsResponse | None:
        asked, dataset = self._asked, self._asked.dataset
        self._reach(asked.end_of(steps[-1]))
        if not self.is_current():
            return None
        bins = as_declared(asked.assignment.bins(steps, asked.rank), dataset.manifest)
        self._catalog.confirm(dataset, components_in(bins))
        numbered = self._numbered(bins, steps)
        if numbered is None:
            return None
        message = pb.StreamBinsResponse()
        block = message.block
        block.first_step, block.num_steps = steps.start, len(steps)
        block.num_sequences, block.num_tokens = len(bins.ids), bins.num_tokens()
        context = block_context(asked.header.checksum, block)
        positions = None
        if not asked.assignment.is_in_order(steps):
            positions = stream_positions(asked.topology, asked.rank, steps.start, len(bins))
        redacted = asked.takedown.redacted(
            bins, epoch=asked.epoch, seed=asked.run_seed, num_bins=asked.num_whole_bins, skips=asked.skips
        )
        encode(bins, block.bins, context, numbered, positions, redacted)
        return message

    def _reach(self, end: int) -> None:
        """Tells how far the stream comes, before a look at what may change from there on: one behind its positions."""
        self._note(end)
        with self._turns:
            reader = self._asked.reader
            reader.position = max(reader.position, self._asked.skips.to_whole(end - 1) + 1)

    def _numbered(self, bins: Bins, steps: range) -> Numbered | None:
        """Numbers templates once all blocks before have done so; None where one of them is not coming."""
        with self._turns:
            self._turns.wait_for(lambda: self._turn == steps.start or self._is_over)
            if self._turn != steps.start:
                return None
            numbered = self._sent.numbered(bins)
            self._turn += len(steps) * steps.step
            self._turns.notify_all()
            return numbered


def block_bytes(num_streams: int) -> int:
    """Returns what a stream's blocks grow to while so many streams are open.

    Example:
        >>> [block_bytes(num_streams) >> 10 for num_streams in (1, 100, 1000, 4000)]
        [1024, 163, 16, 16]
    """
    return min(BLOCK_BYTES, max(LEAST_BLOCK_BYTES, STREAMS_BYTES // max(1, num_streams)))


def next_steps(num_steps: int, seconds: float) -> int:
    """Returns how many steps a stream's next block may have.

    Example:
        >>> next_steps(64, 0.5), next_steps(64, 20.0), next_steps(64, 240.0)  # trainers that take ever longer
        (256, 96, 8)

    Args:
        num_steps: of the block before.
        seconds: after which the next one was asked for.
    """
    return max(1, int(num_steps * min(GROWTH, BLOCK_SECONDS / max(seconds, 1e-9))))


def _steps_per_block(dataset: Served, batch_size: int, num_streams: int) -> int:
    """How many steps fill a block on average, and certainly fit into a message."""
    average = requests.average_bytes_per_bin(dataset) * batch_size
    most = requests.most_bytes_per_bin(dataset) * batch_size
    return max(1, min(int(block_bytes(num_streams) / average), requests.MAX_MESSAGE_BYTES // most))
