"""How everything is measured and shown: interleaved repeats, medians with their spread, one table.

Owns samples, rows, the table on the terminal and RESULTS.md; leaves what is measured to the benchmarks.
"""

import gc
import json
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

sys.path.append(str(Path(__file__).parents[2]))  # for benchmarks that import helpers of the tests

_RUN = "## Run"

PACKAGES = ("packhorse", "seqpack", "torch", "numpy", "numba", "grpcio", "protobuf", "pyarrow")
COLUMNS = ("what", "size", "packhorse", "peer", "ratio", "target", "reached?")
_HEADING = f"| {' | '.join(COLUMNS)} |"


@dataclass(frozen=True, slots=True)
class Sample:
    """One quantity, measured some times."""

    values: tuple[float, ...]
    unit: str

    @property
    def median(self) -> float:
        """Middle of the values."""
        return statistics.median(self.values)

    def __str__(self) -> str:
        """The median, and the range where there is one."""
        text = f"{_short(self.median)} {self.unit}"
        if len(self.values) > 1:
            text += f" ({_short(min(self.values))} to {_short(max(self.values))})"
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table."""

    what: str
    size: str
    ours: str
    peer: str = ""
    """The number and who made it."""
    ratio: float | None = None
    """How many times better than the peer: above 1 is better."""
    target: str = ""
    reached: bool | None = None

    def cells(self) -> tuple[str, ...]:
        """The row as text, in the order of COLUMNS."""
        reached = "" if self.reached is None else "yes" if self.reached else "NO"
        ratio = "" if self.ratio is None else f"{_short(self.ratio)}×"
        return self.what, self.size, self.ours, self.peer, ratio, self.target, reached


def timed(work: Callable[[], Any], *, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds that `work` takes, after the garbage that earlier work left is collected.

    `time.thread_time` as a clock suits work of one thread that waits for nothing: it stands still while other
    processes have the core.
    """
    gc.collect()
    started = clock()
    work()
    return clock() - started


def interleaved(repeats: int, *works: Callable[[], float]) -> list[tuple[float, ...]]:
    """Runs A B A B …, so that whatever else the machine does meets all alike; each returns its own measurement."""
    rounds = [[work() for work in works] for _ in range(repeats)]
    return list(zip(*rounds, strict=True))


def environment(arguments: Sequence[str]) -> dict[str, str]:
    """What a reader needs to judge the numbers, or to measure them again."""
    memory = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": shlex.join(["python", "tests/benchmarks/run.py", *arguments]),
        "machine": f"{_cpu()}, {os.cpu_count()} cores, {memory / 2**20:.0f} GiB",
        "speed": f"{_json_seconds() * 1e3:.0f} ms to write and read 100,000 small objects as JSON",
        "load": f"{os.getloadavg()[0]:.1f} processes running on average in the minute before",
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "packages": ", ".join(f"{name} {version(name)}" for name in PACKAGES),
    }


def show(rows: Sequence[Row], facts: dict[str, str]) -> None:
    """Prints the table."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, overflow="fold")
    for row in rows:
        style = {True: "green", False: "bold red", None: ""}[row.reached]
        table.add_row(*row.cells(), style=style)
    console = Console(width=None if sys.stdout.isatty() else 200)
    for name, fact in facts.items():
        console.print(f"{name:9} {fact}", highlight=False, soft_wrap=True)
    console.print(table)
    missed = sum(row.reached is False for row in rows)
    held = sum(row.reached is True for row in rows)
    console.print(f"{held} targets reached, {missed} missed", highlight=False)


def markdown(runs: Sequence[str]) -> str:
    """Returns RESULTS.md: recorded runs, the newest first."""
    lines = [
        "# Benchmarks",
        "",
        "Written by `python tests/benchmarks/run.py --write`; not edited by hand. Medians, with the range over repeats",
        "in brackets. A ratio says how many times better packhorse is than the peer, which did the same work in the",
        "same run, taking turns. A run of some benchmarks (`--only`) stands before the runs recorded earlier; a run of",
        "all takes their place. `python tests/benchmarks/run.py --outdated` lists the runs that are older than the",
        "code that they measured.",
        "",
    ]
    return "\n".join(lines) + "\n" + "\n".join(runs)


def without_outdated(runs: Sequence[str]) -> list[str]:
    """Leaves out runs, newest first, of which every benchmark was run again since, and rows that a newer run has."""
    seen: set[str] = set()
    seen_rows: set[str] = set()
    kept = []
    for run in runs:
        names = set(run.split("\n", 1)[0].removeprefix(f"{_RUN} of ").split(", "))
        rows = {line: _what_and_size(line) for line in run.split("\n") if line.startswith("| ")}
        if not names <= seen:
            kept.append("\n".join(line for line in run.split("\n") if rows.get(line) not in seen_rows))
        seen |= names
        seen_rows |= set(rows.values()) - {_what_and_size(_HEADING)}
    return kept


def _what_and_size(line: str) -> str:
    return "|".join(line.split("|")[1:3])


def recorded_runs(text: str) -> list[str]:
    """Returns the runs that a RESULTS.md holds, as `recorded_run` made them."""
    first, *others = text.split(f"\n{_RUN}")
    begin = first.find("- date:")
    if not first.startswith("# Benchmarks"):
        return []
    return [*([f"{_RUN} of everything\n\n{first[begin:]}"] if begin >= 0 else []), *(_RUN + run for run in others)]


def recorded_run(title: str, rows: Sequence[Row], facts: dict[str, str], notes: Sequence[str]) -> str:
    """Returns one run as it stands in RESULTS.md."""
    lines = [
        f"{_RUN} of {title}",
        "",
        *(f"- {name}: {fact}" for name, fact in facts.items()),
        "",
        _HEADING,
        f"|{'---|' * len(COLUMNS)}",
        *(f"| {' | '.join(row.cells())} |" for row in rows),
        "",
        "What is measured:",
        *(f"- {note}" for note in notes),
    ]
    return "\n".join(lines) + "\n"


def as_json(rows: Sequence[Row], facts: dict[str, str]) -> dict[str, Any]:
    """Returns the run as plain data."""
    return {"environment": facts, "rows": [asdict(row) for row in rows]}


def _short(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _cpu() -> str:
    """Name and generation of the processor: virtual machines often give all of a maker's the same name."""
    facts: dict[str, str] = {}
    for line in _lines("/proc/cpuinfo"):
        name, _, value = line.partition(":")
        facts.setdefault(name.strip(), value.strip())
    if "model name" not in facts:
        return platform.processor()
    vectors = "AVX-512" if "avx512f" in facts.get("flags", "").split() else "no AVX-512"
    return f"{facts['model name']} (family {facts.get('cpu family')}, model {facts.get('model')}, {vectors})"


def _json_seconds() -> float:
    """Seconds that one core takes, the best of five: machines of the same name differ twofold."""
    objects = [{"id": number, "length": number % 2048} for number in range(100_000)]
    return min(timed(lambda: json.loads(json.dumps(objects))) for _ in range(5))


def _lines(path: str) -> list[str]:
    file = Path(path)
    return file.read_text().splitlines() if file.exists() else []


def results_of_ranks(rank: Callable[..., None], arguments: tuple[Any, ...], num_ranks: int) -> dict[int, Any]:
    """Returns what each rank puts into its queue, by rank; raises what one raises, rather than wait for it.

    Args:
        rank: top-level; called in a process of its own as rank(number, *arguments, queue), and puts (number, result).
        arguments: of all ranks.
        num_ranks: processes.
    """
    import torch.multiprocessing as mp  # most benchmarks need no torch

    queue = mp.get_context("spawn").SimpleQueue()
    processes = mp.start_processes(rank, (*arguments, queue), nprocs=num_ranks, join=False, start_method="spawn")
    found: dict[int, Any] = {}
    while len(found) < num_ranks:
        if not queue.empty():
            found.update([queue.get()])
        elif processes.join(timeout=0.1) and queue.empty():
            raise RuntimeError(f"only {len(found)} of {num_ranks} ranks gave a result")
    while not processes.join():
        pass
    return found
