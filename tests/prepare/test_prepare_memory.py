"""Anonymous memory of `prepare` does not grow with the number of rows."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

MEASURE = """
import sys, threading, time
from pathlib import Path
from packhorse.prepare import Execution, InputColumns, prepare

def anonymous_kib():
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0])

peak, done = 0, threading.Event()
def watch():
    global peak
    while not done.is_set():
        peak = max(peak, anonymous_kib())
        time.sleep(0.001)

watcher = threading.Thread(target=watch, daemon=True)
watcher.start()
columns, execution = InputColumns(length="n", id="id"), Execution(workers=1)
prepare(sys.argv[1], columns=columns, execution=execution, max_seq_len=512, output=sys.argv[2])
done.set()
watcher.join()
print(peak)
"""

FEW, MANY = 200_000, 3_000_000
MARGIN_KIB = 20 * 1024
"""A third of it is the largest window of ids. The lengths and ids of the rows between would take 32 MiB as stored."""


def peak_kib(folder: Path, rows: int) -> int:
    rng = np.random.default_rng(rows)
    table = pa.table({"n": rng.integers(1, 513, rows, dtype=np.int32), "id": rng.permutation(rows)})
    pq.write_table(table, folder / f"{rows}.parquet", row_group_size=rows)
    command = [sys.executable, "-c", MEASURE, str(folder / f"{rows}.parquet"), str(folder / f"out{rows}")]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
def test_anonymous_memory_does_not_grow_with_rows(tmp_path: Path) -> None:
    peak_kib(tmp_path, 1000)  # compiles and caches the kernels, which takes memory of its own
    assert peak_kib(tmp_path, MANY) - peak_kib(tmp_path, FEW) < MARGIN_KIB
