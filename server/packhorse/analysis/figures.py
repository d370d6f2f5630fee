"""Figures of the status page that take seconds: made by a child process while somebody looks, and kept by digest.

Leaves what the figures are to `packhorse.analysis`, and who asks for them to `status_page`. The serving processes do
not take part: the child opens the folder itself, at a lower priority.
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
"""How long after the last look the child goes on: the page looks every three seconds."""

_POLL_SECONDS = 0.2
_MOST_SECONDS = 600
"""How long a child may take. It ends then, whatever has become of its parent."""

_CHILD = "from packhorse.analysis.figures import print_figures; print_figures()"
_LOG = logging.getLogger(__name__)


class Figures:
    """Makes one dataset's figures at a time. Many threads may use it.

    Args:
        root: the folder of the datasets.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._made: dict[str, dict[str, Any] | str] = {}  # by digest
        self._wanted: dict[str, tuple[str, float]] = {}  # digest → a dataset that has it, and when somebody looked last
        self._is_making = False

    def of(self, digest: str) -> dict[str, Any] | str | None:
        """Returns the figures of a digest, or why they are not there ("computing", "failed"); None if nobody asked."""
        with self._lock:
            return "computing" if digest in self._wanted else self._made.get(digest)

    def look(self, name: str, digest: str) -> None:
        """Has the figures made, if they are not there; somebody looks at them now."""
        with self._lock:
            if digest in self._made:
                return
            self._wanted[digest] = name, time.monotonic()
            if not self._is_making:
                self._is_making = True
                threading.Thread(target=self._make_all, name="figures", daemon=True).start()

    def keep(self, digests: set[str]) -> None:
        """Forgets the figures of other digests."""
        with self._lock:
            self._made = {digest: figures for digest, figures in self._made.items() if digest in digests}

    def _make_all(self) -> None:
        while True:
            with self._lock:
                self._wanted = {
                    digest: (name, looked)
                    for digest, (name, looked) in self._wanted.items()
                    if time.monotonic() - looked < LOOKED_SECONDS
                }
                if not self._wanted:
                    self._is_making = False
                    return
                digest, (name, _) = next(iter(self._wanted.items()))
            made = self._make(name, digest)
            with self._lock:
                self._wanted.pop(digest, None)
                if made is not None:
                    self._made[digest] = made

    def _make(self, name: str, digest: str) -> dict[str, Any] | str | None:
        """Returns what a child makes of a dataset; None if nobody looks any longer."""
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
                        is_looked_at = time.monotonic() - self._wanted[digest][1] < LOOKED_SECONDS
                    if not is_looked_at:
                        child.kill()
                        return None
        if child.returncode:
            _LOG.error("the status page lacks figures of dataset %s: %s", name, err.decode(errors="replace")[-2000:])
            return "failed; the server's log has the error"
        made: dict[str, Any] | str = json.loads(out)
        return made


def print_figures() -> None:
    """Prints a folder's figures as JSON; the child's whole work."""
    from packhorse.analysis import costly_facts
    from packhorse.dataset import open_prepared

    os.nice(10)
    signal.alarm(_MOST_SECONDS)
    path, digest = sys.argv[1:]
    dataset = open_prepared(path, check_pool=False)
    is_same = dataset.manifest.digest == digest
    print(json.dumps(costly_facts(dataset) if is_same else "its folder was replaced; look again"))
