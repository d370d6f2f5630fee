"""Which dataset each training run reads: two digests in one run mean that replicas serve different data.

Owns remembering the digests of the runs that stream here, and their metric. A server knows only its own streams; an
alert of Prometheus compares the metrics of all servers.
"""

import re
import time
from collections import OrderedDict
from typing import Any, TypeAlias

from packhorse.server.watching.calls import Call, Watcher
from packhorse.server.watching.metrics import Metrics
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import own_digest

MOST_RUNS = 64
"""Most pairs of a run and a digest that are remembered: those whose streams opened or ended last."""

KEEP_SECONDS = 3600.0
"""How long a digest is shown after a stream of its run last opened with it, or ended. It goes when the next stream
whose digest is shown opens or ends after that; sooner only if there are more than MOST_RUNS."""

_Key: TypeAlias = tuple[str, str, str]
"""(dataset, run, digest): the labels of the metric."""

_RUN_ID = re.compile(r"[\w.:-]{1,64}")
"""Run ids of another form are not shown: a stranger may send anything."""


class RunDigests(Watcher):
    """Follows streams that say which run they belong to. Used from one event loop only.

    Args:
        metrics: `run_digest` is set here.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._seen_at: OrderedDict[_Key, float] = OrderedDict()  # by `time.monotonic`; the newest is last
        self._key_of_call: dict[Call, _Key] = {}

    def sent(self, call: Call, message: Any, waited_seconds: float) -> None:
        """Remembers the digest in a stream's header. A mixture's digest changes with its stages, so it is not shown."""
        if not isinstance(message, pb.StreamBinsResponse) or not message.HasField("header"):
            return
        run = getattr(call.request, "run_id", "")
        if message.header.components or not _RUN_ID.fullmatch(run):
            return
        key = (getattr(call.request, "dataset", ""), run, own_digest(message.header.digest))
        self._key_of_call[call] = key
        self._show(key)

    def ended(self, call: Call) -> None:
        """Keeps a run's digest for another KEEP_SECONDS when its stream has ended."""
        key = self._key_of_call.pop(call, None)
        if key is not None:
            self._show(key)

    def _show(self, key: _Key) -> None:
        """Shows a digest as seen now, and old ones as 0, because processes may share the metric in files."""
        now = time.monotonic()
        self._seen_at[key] = now
        self._seen_at.move_to_end(key)
        self._metrics.run_digest.labels(*key).set(1)
        while len(self._seen_at) > MOST_RUNS or now - next(iter(self._seen_at.values())) > KEEP_SECONDS:
            oldest, _ = self._seen_at.popitem(last=False)
            self._metrics.run_digest.labels(*oldest).set(0)
