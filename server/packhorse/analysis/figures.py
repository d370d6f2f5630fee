"""The status page's costly figures: computed by a child process while somebody looks at them, and cached by digest.

Owns the child, its time limit and the cache. The child opens the folder itself and has a lower priority, so that the
serving processes are not slowed down. Which figures these are is in `facts`, and the page is in `status_page`.
"""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

LOOKED_SECONDS = 10.0
"""Seconds after the last look at which the child is stopped. The page looks every three seconds."""

_POLL_SECONDS = 0.2
_CHILD_LIMIT_SECONDS = 600
"""How long a child may take. Its own alarm ends it, so it ends even if its parent is gone."""

_NICENESS = 10
"""What is added to the child's niceness, so that it has a lower priority than the servers."""
_CHILD = "from packhorse.analysis.figures import print_figures; print_figures()"
_LOG = logging.getLogger(__name__)


class CostlyFacts:
    """A cache of figures by digest, which computes those of one dataset at a time. Safe to be used by many threads.

    Args:
        root: the folder of the datasets.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._made: dict[str, dict[str, Any] | str] = {}
        """Digest → figures, or why they failed."""
        self._looked_at: dict[str, tuple[str, float]] = {}
        """Digest without figures → (name of a dataset with it, time of the last look)."""
        self._is_making = False
        """Whether the thread that computes figures runs."""

    def of(self, digest: str) -> dict[str, Any] | str | None:
        """Returns a digest's figures, or why they are not there ("computing", or a sentence); None if nobody asked."""
        with self._lock:
            return "computing" if digest in self._looked_at else self._made.get(digest)

    def request(self, name: str, digest: str) -> None:
        """Notes that somebody looks at a dataset's figures now, and begins computing them if they are not there."""
        with self._lock:
            if digest in self._made:
                return
            self._looked_at[digest] = name, time.monotonic()
            if not self._is_making:
                self._is_making = True
                threading.Thread(target=self._make_all, name="figures", daemon=True).start()

    def forget_others(self, digests: set[str]) -> None:
        """Forgets the figures of all digests but these."""
        with self._lock:
            self._made = {digest: figures for digest, figures in self._made.items() if digest in digests}

    def _make_all(self) -> None:
        """Computes figures until nobody looks at a dataset that lacks them; the work of the thread."""
        while True:
            with self._lock:
                self._looked_at = {
                    digest: (name, looked)
                    for digest, (name, looked) in self._looked_at.items()
                    if time.monotonic() - looked < LOOKED_SECONDS
                }
                if not self._looked_at:
                    self._is_making = False
                    return
                digest, (name, _) = next(iter(self._looked_at.items()))
            made = self._make(name, digest)
            with self._lock:
                self._looked_at.pop(digest, None)
                if made is not None:
                    self._made[digest] = made

    def _make(self, name: str, digest: str) -> dict[str, Any] | str | None:
        """Returns a child's figures of a dataset, or why it failed as a sentence; None if nobody looks any longer."""
        with subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(self._root / name), digest],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        ) as child:
            while True:
                try:
                    out, err = child.communicate(timeout=_POLL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    with self._lock:
                        _, looked = self._looked_at[digest]  # which only this thread takes out, afterwards
                    if time.monotonic() - looked >= LOOKED_SECONDS:
                        child.kill()
                        return None
        if child.returncode:
            _LOG.error("the status page lacks figures of dataset %s: %s", name, err.decode(errors="replace")[-2000:])
            return "failed; the server's log has the error"
        made: dict[str, Any] | str = json.loads(out)
        return made


def print_figures() -> None:
    """Prints a folder's figures as JSON, or a sentence if the folder was replaced meanwhile. This is all a child does.

    The command line holds the folder and its digest.
    """
    from packhorse.analysis import costly_facts
    from packhorse.dataset import open_prepared

    os.nice(_NICENESS)
    signal.alarm(_CHILD_LIMIT_SECONDS)
    path, digest = sys.argv[1:]
    dataset = open_prepared(path, check_pool=False)
    is_same = dataset.manifest.digest == digest
    print(json.dumps(costly_facts(dataset) if is_same else "its folder was replaced; look again"))
