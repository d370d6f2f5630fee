"""`EpochHeaders`: the headers of a run's epochs, each asked for once; epochs that skip the same share one.

Owns who asks: this process, or a child process. Leaves which epochs are read to `packed_bins`.
"""

from collections.abc import Callable
from functools import partial

from packhorse.client.api import Client
from packhorse.client.connecting import Server
from packhorse.client.options import Run
from packhorse.client.streams.cursor import Resume
from packhorse.topology import Topology
from packhorse.types import StreamHeader


class EpochHeaders:
    """The header of each epoch of a run, from the server at the first call.

    Args:
        server: the server to ask.
        run: the dataset, its seed and skips.
        agreed_digest: the digest of the dataset on which this run's ranks agreed; "" if they agreed on none.
    """

    def __init__(self, server: Server, run: Run, agreed_digest: str) -> None:
        self._server = server
        self._run = run
        self._agreed_digest = agreed_digest
        # (skipped ranges, first position) → header: epochs that have both in common have the same facts.
        self._headers: dict[tuple[str, int], StreamHeader] = {}

    def header(self, resume: Resume, connection: Callable[[], Client | None]) -> StreamHeader:
        """Returns the header of one epoch, from the position where it begins.

        Args:
            resume: the epoch and the position.
            connection: function that returns this process's connection; None lets a child process ask, so that this
                process may fork workers.
        """
        key = str(self._run.skips(resume.epoch)), resume.position
        if key not in self._headers:
            client = connection()
            if client is None:
                self._headers[key] = self._server.ask(partial(self._ask_anew, resume))
            else:
                self._headers[key] = self._ask(resume, client)
        return self._headers[key]

    def forget(self) -> None:
        """Forgets the headers, and with them the digest of the first; the one that ranks agreed on stays."""
        self._headers = {}

    def _ask_anew(self, resume: Resume) -> StreamHeader:
        """Returns the header of an epoch's stream, over a new connection."""
        with self._server.open() as client:
            return self._ask(resume, client)

    def _ask(self, resume: Resume, client: Client) -> StreamHeader:
        """Returns the header of an epoch's stream; the server compares the digest."""
        with client.stream_bins(
            self._run.dataset,
            epoch=resume.epoch,
            seed=self._run.seed,
            topology=Topology(start_position=resume.position),
            skip=self._run.skips(resume.epoch),
            expected_digest=resume.digest or self._known_digest(),
        ) as stream:
            self._run.check_skips(resume.epoch, stream.header)
            return stream.header

    def _known_digest(self) -> str:
        """Returns the digest that this run reads: of the first answer, or as its ranks agreed; "" if unknown."""
        return next((header.digest for header in self._headers.values()), self._agreed_digest)
