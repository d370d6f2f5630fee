"""Whether this server can serve, and the errors of the files that it watches.

Owns the reasons for which health is NOT_SERVING, and the two loops that look for them: whether lanes answer, and
whether there is a dataset. Leaves gRPC's health service itself to `running`.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from grpc_health.v1 import health, health_pb2

from packhorse.server.access.tls import Certificates
from packhorse.server.access.tokens import TokenFile
from packhorse.server.datasets.catalog import Catalog
from packhorse.server.datasets.mixtures import Mixtures
from packhorse.server.service.lanes import Lane
from packhorse.server.watching.calls import SERVICE
from packhorse.server.watching.metrics import EXPIRY, UNUSABLE_FILES, Metrics, Values

_LOG = logging.getLogger(__name__)

NO_BLOCKS = "blocks"
"""The cause that the lanes of streams do not answer."""

PROBE_SECONDS = 10.0
"""How long a lane of streams may take to answer before health turns NOT_SERVING; it is probed again at once."""

PROBE_EVERY_SECONDS = 2.0

_WATCH_EVERY_SECONDS = 10.0


class Condition:
    """Sets health by the reasons against it. Used from one event loop only.

    The service's health is NOT_SERVING for any reason. The process's is so only while no blocks are made, because only
    then may a restart help.

    Args:
        servicer: of gRPC's health.
        metrics: shows health too.
    """

    def __init__(self, servicer: health.aio.HealthServicer, metrics: Metrics) -> None:  # type: ignore[name-defined]
        self._servicer = servicer
        self._metrics = metrics
        self._reasons: dict[str, str] = {}

    async def set(self, cause: str, reason: str) -> None:
        """Sets one reason why this server cannot serve, and logs a change of health.

        Args:
            cause: a reason replaces the earlier one of the same cause; NO_BLOCKS counts for the process too.
            reason: empty if this cause is not, or no longer, a reason.
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
        status = health_pb2.HealthCheckResponse
        await self._servicer.set(SERVICE, status.NOT_SERVING if self._reasons else status.SERVING)
        await self._servicer.set("", status.NOT_SERVING if NO_BLOCKS in self._reasons else status.SERVING)
        self._metrics.serving.set(not self._reasons)


async def probe(lanes: Sequence[Lane], condition: Condition) -> None:
    """Sets health by whether all lanes answer, until it is cancelled."""
    while True:
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                for answer in [lane.submit(int) for lane in lanes]:
                    await answer
            await condition.set(NO_BLOCKS, "")
            await asyncio.sleep(PROBE_EVERY_SECONDS)
        except TimeoutError:
            await condition.set(NO_BLOCKS, f"no block could be made for {PROBE_SECONDS:g} seconds")


async def watch(catalog: Catalog, mixtures: Mixtures, look_now: asyncio.Event, condition: Condition) -> None:
    """Looks for new and changed datasets and at takedowns, now and then and when `look_now` is set.

    While nothing can be served, health is NOT_SERVING: clients then wait, or go elsewhere, instead of failing.
    """
    while True:
        with suppress(TimeoutError):
            await asyncio.wait_for(look_now.wait(), _WATCH_EVERY_SECONDS)
        look_now.clear()
        try:
            await asyncio.to_thread(catalog.refresh)
            await asyncio.to_thread(mixtures.warn_of_unknown_ids)
        except OSError as error:
            _LOG.error("the data root cannot be read: %s", error)
        names = await asyncio.to_thread(mixtures.names)
        await condition.set("datasets", "" if names else why_nothing_is_served(mixtures))


def why_nothing_is_served(mixtures: Mixtures) -> str:
    """Returns why no dataset can be served."""
    reasons = list(dict.fromkeys(mixtures.troubles().values()))
    return f"no dataset below {mixtures.root} can be served: {'; '.join(reasons) or 'there is none'}"


def file_values(
    mixtures: Mixtures, tokens: TokenFile | None, certificates: Certificates | None
) -> dict[str, Callable[[], Values]]:
    """Returns what computes the values of `metrics.FILE_GAUGES`."""

    def unusable() -> Values:
        kinds = (("tokens", tokens), ("certificates", certificates))
        others = [(kind, "") for kind, files in kinds if files is not None and files.trouble]
        return dict.fromkeys([*mixtures.troubles(), *others], 1)

    def expiries() -> Values:
        kinds = (("token", tokens), ("certificate", certificates))
        return {(kind, name): end for kind, files in kinds if files is not None for name, end in files.ends().items()}

    return {UNUSABLE_FILES: unusable, EXPIRY: expiries}
