"""How many files and connections this process may have open.

Owns the limit of the operating system (`ulimit -n`); leaves limits of our own to `app`.
"""

import logging
import resource

_LOG = logging.getLogger(__name__)

OWN = 128
"""Files of the process itself: libraries, datasets, what threads wait with."""


def allow_descriptors(wanted: int) -> None:
    """Raises the limit as far as this process may, and says so in the log where that is less than it wants.

    Shells and service managers start processes with 1,024 or so, for programs that know no larger numbers, and let
    each raise it.

    Args:
        wanted: connections at once, and files beside OWN.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < wanted + OWN:
        _LOG.warning(
            "this process may have %d files and connections open, and with --max-streams wants up to %d: raise the "
            "limit (ulimit -Hn, LimitNOFILE= of systemd, docker run --ulimit nofile=), or lower --max-streams",
            hard,
            wanted + OWN,
        )
