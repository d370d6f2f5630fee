"""Whether this server can serve, and what is wrong with the files that it follows.

Owns the reasons for which health is NOT_SERVING, and the list of troubles; leaves finding either to whoever looks.
"""

import logging
from collections.abc import Callable

from grpc_health.v1 import health, health_pb2

from packhorse.server.access.tls import Certificates
from packhorse.server.access.tokens import TokenFile
from packhorse.server.datasets.mixtures import Mixtures
from packhorse.server.watching.metrics import EXPIRY, UNUSABLE_FILES, Metrics, Values

_LOG = logging.getLogger(__name__)

NO_BLOCKS = "blocks"
"""The cause that the lanes of streams do not answer."""


class Condition:
    """Sets health by whether any reason speaks against it. Used from one event loop only.

    The service's health is NOT_SERVING for any reason, the process's where no blocks are made: a restart may help then,
    and only then.

    Args:
        servicer: of gRPC's health.
        service: whose health it sets.
        metrics: tell it too.
    """

    def __init__(self, servicer: health.aio.HealthServicer, service: str, metrics: Metrics) -> None:  # type: ignore[name-defined]
        self._servicer = servicer
        self._service = service
        self._metrics = metrics
        self._reasons: dict[str, str] = {}

    async def set(self, cause: str, reason: str) -> None:
        """Keeps why this server cannot serve, and tells the log where that changes health.

        Args:
            cause: what a reason replaces: the one of before with the same cause; NO_BLOCKS counts for the process too.
            reason: empty where it does not, or no longer, speak against serving.
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
        await self._servicer.set(self._service, status.NOT_SERVING if self._reasons else status.SERVING)
        await self._servicer.set("", status.NOT_SERVING if NO_BLOCKS in self._reasons else status.SERVING)
        self._metrics.serving.set(not self._reasons)


def troubles_of(
    mixtures: Mixtures, tokens: TokenFile | None, certificates: Certificates | None
) -> dict[tuple[str, str], str]:
    """Returns what is wrong with files that the server follows: (kind, name) → why, for people."""
    found = mixtures.troubles()
    for kind, followed in (("tokens", tokens), ("certificates", certificates)):
        if followed is not None and followed.trouble:
            found[kind, ""] = followed.trouble
    return found


def nothing_served(mixtures: Mixtures) -> str:
    """Returns why no dataset can be served."""
    reasons = list(dict.fromkeys(mixtures.troubles().values()))
    return f"no dataset below {mixtures.root} can be served: {'; '.join(reasons) or 'there is none'}"


def asked_gauges(
    mixtures: Mixtures, tokens: TokenFile | None, certificates: Certificates | None
) -> dict[str, Callable[[], Values]]:
    """Returns what gives the values of `metrics.ASKED_GAUGES`."""

    def expiries() -> Values:
        followed = (("token", tokens), ("certificate", certificates))
        return {(kind, name): end for kind, each in followed if each is not None for name, end in each.ends().items()}

    return {
        UNUSABLE_FILES: lambda: dict.fromkeys(troubles_of(mixtures, tokens, certificates), 1),
        EXPIRY: expiries,
    }
