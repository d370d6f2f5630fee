"""Whether this server can serve, and why not; looks for new datasets and takedowns every ten seconds.

Owns the reasons for which health is NOT_SERVING (`ServerHealth`), and the two loops that look for them: whether lanes
answer and a block can be made (`probe`, with `BlockProbe`), and whether there is a dataset (`watch`). Leaves gRPC's
health service, and health while the server starts or drains, to `running`.
"""

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial

from grpc_health.v1 import health, health_pb2

from packhorse.server.base.faults import ServiceError
from packhorse.server.datasets.catalog import Catalog
from packhorse.server.datasets.corpora import Corpora
from packhorse.server.datasets.mixtures import Mixtures
from packhorse.server.methods.backend import Backend
from packhorse.server.service.lanes import Lane
from packhorse.server.watching.calls import SERVICE
from packhorse.server.watching.metrics import Metrics
from packhorse.storage import within
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import WIRE_VERSION

_LOG = logging.getLogger(__name__)

TOKENS = f"{SERVICE}.Tokens"
"""The service name under which gRPC's health says whether tokens can be sent, if the server sends them."""

LANES, BLOCK, DATASETS = "lanes", "a block", "datasets"
"""Causes of NOT_SERVING: the lanes of streams do not answer, no block can be made, or no dataset can be served."""

PROBE_SECONDS = 10.0
"""How long all lanes of streams may take to answer before health turns NOT_SERVING. Then they are probed again at once.
Also how long a dataset's block may take before its files count as hanging."""

PROBE_EVERY_SECONDS = 2.0
"""Pause after a probe that all lanes answered."""

ANSWER_SECONDS = 5.0
"""How long the event loop may take to say whether this server serves. Most probes give up earlier."""

_WATCH_EVERY_SECONDS = 10.0
"""How long `watch` waits between two looks for datasets and takedowns."""


class ServerHealth:
    """The reasons why this server cannot serve, and the health that follows. Only `ask` is for other threads.

    The service's health is NOT_SERVING while there is any reason. The process's health (of the empty service name) is
    so only while the lanes of streams do not answer (LANES), because only then may a restart help.

    Args:
        servicer: gRPC's health service, which answers probes.
        metrics: the metrics, with a gauge of the service's health.
    """

    def __init__(self, servicer: health.aio.HealthServicer, metrics: Metrics) -> None:  # type: ignore[name-defined]
        self._servicer = servicer
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._reasons: dict[str, str] = {}  # cause → a sentence for the log

    def ask(self, seconds: float = ANSWER_SECONDS) -> bool:
        """Asks the event loop, from another thread, whether this server serves; returns False without an answer."""
        answer = asyncio.run_coroutine_threadsafe(self._is_serving(), self._loop)
        try:
            return answer.result(seconds)
        except (TimeoutError, CancelledError):
            answer.cancel()
            self._metrics.serving.set(0)
            return False

    async def _is_serving(self) -> bool:
        """Sets the gauge, and returns whether this server serves."""
        self._metrics.serving.set(not self._reasons)
        return not self._reasons

    async def set(self, cause: str, reason: str) -> None:
        """Sets one reason why this server cannot serve, and logs a change of health.

        Args:
            cause: LANES, BLOCK or DATASETS; a reason replaces the earlier one of the same cause.
            reason: a sentence for the log; empty if this cause does not prevent serving now.
        """
        before = dict(self._reasons)
        if reason:
            self._reasons[cause] = reason
        else:
            self._reasons.pop(cause, None)
        if reason and reason != before.get(cause):
            _LOG.error("health is NOT_SERVING: %s", reason)
        elif before and not self._reasons:
            _LOG.info("health is SERVING again")
        await self._servicer.set(SERVICE, _health_if(not self._reasons))
        await self._servicer.set("", _health_if(LANES not in self._reasons))
        self._metrics.serving.set(not self._reasons)

    async def set_tokens(self, *, is_whole: bool) -> None:
        """Sets the health of `TOKENS`: NOT_SERVING if the tokens of any dataset are withdrawn. Ids are still served.

        Args:
            is_whole: whether the tokens of all datasets can be sent.
        """
        await self._servicer.set(TOKENS, _health_if(is_whole))


def _health_if(serves: bool) -> "health_pb2.HealthCheckResponse.ServingStatus":
    status = health_pb2.HealthCheckResponse
    return status.SERVING if serves else status.NOT_SERVING


class BlockProbe:
    """Looks up one dataset after the other and makes one of its blocks, as a client's request would.

    Args:
        catalog: the datasets that are served.
        backend: the service, which makes the blocks.
    """

    def __init__(self, catalog: Catalog, backend: Backend) -> None:
        self._catalog = catalog
        self._backend = backend
        self._last_name = ""  # of the dataset that was looked up last
        self._hanging: set[str] = set()  # names of datasets whose files did not answer when they were last asked

    def make_block(self) -> None:
        """Makes a block of the next dataset whose files answer.

        Raises:
            TimeoutError: no block was made, and the files of at least one dataset do not answer.
        """
        names = sorted(dataset.name for dataset in self._catalog.opened())
        num_done = bisect_right(names, self._last_name)  # those after the last one come first
        for name in names[num_done:] + names[:num_done]:
            self._last_name = name
            try:
                within(f"a block of {name}", partial(self._make, name), PROBE_SECONDS)
            except TimeoutError:
                if name not in self._hanging:
                    _LOG.error("no block of %s can be made: its files have not answered for some seconds", name)
                self._hanging.add(name)
                continue
            except ServiceError:  # the dataset is not served, and its clients get the same error
                self._hanging.discard(name)
                continue
            if name in self._hanging:
                self._hanging.discard(name)
                _LOG.info("blocks of %s can be made again", name)
            return
        if self._hanging.intersection(names):
            raise TimeoutError

    def _make(self, name: str) -> None:
        self._backend.get_bins(pb.GetBinsRequest(dataset=name, positions=[0], wire_version=WIRE_VERSION, is_whole=True))


async def probe(lanes: Sequence[Lane], make_block: Callable[[], None], server_health: ServerHealth) -> None:
    """Looks again and again whether all lanes answer and a block can be made, and sets health. Never returns.

    Args:
        lanes: the lanes of streams.
        make_block: makes a block, as `BlockProbe.make_block` does, or raises.
        server_health: the health to set.
    """
    while True:
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                for answer in [lane.submit(int) for lane in lanes]:  # `int()` is work that does nothing
                    await answer
        except TimeoutError:
            await server_health.set(LANES, f"no block could be made for {PROBE_SECONDS:g} seconds")
            continue
        await server_health.set(LANES, "")
        await server_health.set(BLOCK, await asyncio.to_thread(_why_no_block, make_block))
        await asyncio.sleep(PROBE_EVERY_SECONDS)


def _why_no_block(make_block: Callable[[], None]) -> str:
    """Returns why no block can be made, for a reason that a restart would not remove; empty if one was made."""
    try:
        make_block()
    except TimeoutError:
        return "the files of no dataset answer"
    except Exception as error:
        _LOG.exception("a block that health asks for could not be made")
        return f"a block could not be made: {type(error).__name__}"
    return ""


async def watch(
    catalog: Catalog, mixtures: Mixtures, corpora: Corpora, look_now: asyncio.Event, server_health: ServerHealth
) -> None:
    """Looks for new and changed datasets and takedowns, every ten seconds and when `look_now` is set.

    While nothing can be served, health is NOT_SERVING: clients then wait, or go elsewhere, instead of failing.
    """
    trouble = ""
    while True:
        with suppress(TimeoutError):
            await asyncio.wait_for(look_now.wait(), _WATCH_EVERY_SECONDS)
        look_now.clear()
        trouble_before, trouble = trouble, ""
        try:
            await asyncio.to_thread(catalog.refresh)
            await asyncio.to_thread(mixtures.warn_of_unknown_ids)
        except OSError as error:
            trouble = str(error)
        if trouble and trouble != trouble_before:
            _LOG.error("the data root cannot be read: %s", trouble)
        elif trouble_before and not trouble:
            _LOG.info("the data root can be read again")
        names = await asyncio.to_thread(mixtures.names)
        await server_health.set(DATASETS, "" if names else why_nothing_is_served(mixtures))
        if corpora.are_asked_for:
            await server_health.set_tokens(is_whole=not corpora.troubles())


def why_nothing_is_served(mixtures: Mixtures) -> str:
    """Returns why no dataset can be served."""
    reasons = list(dict.fromkeys(mixtures.troubles().values()))
    return f"no dataset below {mixtures.root} can be served: {'; '.join(reasons) or 'there is none'}"
