"""Two replicas, restarted in turn under eight streams: how long a stream waits, and that nothing is lost."""

import re
import sys
import time
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

import numpy as np
from harness import Row
from tests.servers import Server
from workload import Workspace, in_words

sys.path.append(str(Path(__file__).parents[1] / "chaos"))

NOTE = (
    "rolling restart: two servers of one folder on loopback; eight ranks, each a client with both addresses, read "
    "epoch after epoch. One server gets SIGTERM, ends, and is started again until it serves; then the other; and both "
    "once more. The longest wait is that of any rank for its next block, beside as long a time in which nothing is "
    "restarted. Ranks that read as fast as blocks come have nothing buffered that could hide a wait; ranks that train "
    "take their steps, and then ask. From end to reopening: by the servers' logs, from the end of a stream to its "
    "rank's next stream within the epoch. Every epoch that all ranks have read is compared with the ids 0, 1, 2, … Run "
    "only when it is named."
)
_MOST_SECONDS = 1.0
_STEPS_PER_SECOND = 5_000.0


def run(workspace: Workspace) -> list[Row]:
    """Measures, and returns rows."""
    import load

    folder = workspace.root / "restarted"
    folder.mkdir()
    number = 8_000_000 if workspace.sizes.repeats > 3 else 1_000_000
    root = load.prepare_datasets(folder, num_sequences=number)
    rows = []
    for how, pace in (("as fast as blocks come", None), ("5,000 steps a second each", _STEPS_PER_SECOND)):
        rows += _rows(root, folder, number, how, pace)
    return rows


def _rows(root: Path, folder: Path, number: int, how: str, pace: float | None) -> list[Row]:
    import load

    with ExitStack() as ending:
        servers = [Server(root, log=folder / f"{name} {how}") for name in ("first", "second")]
        for server in servers:
            ending.callback(server.stop)
        target = ",".join(server.target for server in servers)
        with load.Readers(target, steps_per_second=pace) as readers:
            time.sleep(2)
            readers.longest_wait_seconds, began = 0.0, time.perf_counter()
            for server in servers * 2:
                server.terminate()
                server.wait()
                server.start()
                time.sleep(2)
            took, longest = time.perf_counter() - began, readers.longest_wait_seconds
            readers.longest_wait_seconds = 0.0
            time.sleep(took)
            undisturbed = readers.longest_wait_seconds
        gaps = _reopenings("".join(server.log() for server in servers))
    assert not readers.failures, readers.failures
    epochs = readers.complete_epochs()
    wrong = sum(not np.array_equal(np.sort(ids), np.arange(number)) for ids in epochs)
    ranks, seconds = {rank for rank, _ in gaps}, [each for _, each in gaps]
    reopened = f"{np.median(seconds):.3f} s (longest {max(seconds):.3f} s)"
    size = f"{load.NUM_STREAMS} streams, {in_words(number)} sequences, {how}"
    return [
        Row(
            what="longest wait for a block while two replicas restart",
            size=size,
            ours=f"{longest:.3f} s in {took:.1f} s",
            peer=f"{undisturbed:.3f} s, nothing restarted",
            ratio=undisturbed / longest,
            target=f"< {_MOST_SECONDS:g} s",
            reached=longest < _MOST_SECONDS,
        ),
        Row(
            what="from a stream's end to its reopening",
            size=size,
            ours=f"{reopened}, {len(gaps)} streams of {len(ranks)} ranks",
        ),
        Row(
            what="epochs with a sequence lost or repeated",
            size=size,
            ours=f"{wrong} of {len(epochs)}",
            target="none, every rank reopened",
            reached=not wrong and len(epochs) > 0 and len(ranks) == load.NUM_STREAMS,
        ),
    ]


def _reopenings(log: str) -> list[tuple[str, float]]:
    """Each rank that opened a stream within an epoch, and the seconds since its earlier one ended; from both logs."""
    lines = sorted(line for line in log.splitlines() if re.search(r"stream (opened|ended)", line))
    ended: dict[str, datetime] = {}
    found = []
    for line in lines:
        at = datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f")
        of = re.search(r"epoch=\d+ rank=(\d+)", line)
        assert of is not None
        if "stream ended" in line:
            ended[of[0]] = at
        elif "step=0 " not in line and of[0] in ended:
            found.append((of[1], (at - ended[of[0]]).total_seconds()))
    return found
