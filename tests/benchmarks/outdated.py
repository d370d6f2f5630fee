"""Which recorded runs are older than the code that they measured, by git's dates.

Owns what a benchmark measures: the packages that it and the helpers beside it import, and the server's where one is
started. What these packages import in turn is left out: nearly all benchmarks would then be old after each commit.
"""

import ast
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

_HERE = Path(__file__).parent
_OF_THE_SERVER = ("packhorse.server", "packhorse.epoch")
_WORDS_OF_A_SERVER = ("serving", "PACKHORSE", "tests.servers")
"""What a benchmark starts a server with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outdated:
    """A benchmark whose code was changed after its last run."""

    name: str
    last_run: datetime | None
    """None where RESULTS.md has no run of it."""
    changed: datetime
    packages: tuple[str, ...]
    """What it measures."""

    def __str__(self) -> str:
        run = f"run {self.last_run:%Y-%m-%d %H:%M} UTC" if self.last_run else "never run"
        return f"{self.name}: {run}, {', '.join(self.packages)} changed {self.changed:%Y-%m-%d %H:%M} UTC"


def outdated(runs: Sequence[str], files: Mapping[str, Path], everything: Sequence[str]) -> list[Outdated]:
    """Returns the benchmarks that are to be run again, by name.

    Args:
        runs: as RESULTS.md holds them, the newest first.
        files: the module of each benchmark, by name.
        everything: names of what a run of everything runs.
    """
    last = last_runs(runs, everything)
    found = []
    for name, path in sorted(files.items()):
        packages = packages_of(path)
        changed = _changed(packages)
        when = last.get(name)
        if changed is not None and (when is None or when < changed):
            found.append(Outdated(name=name, last_run=when, changed=changed, packages=packages))
    return found


def last_runs(runs: Sequence[str], everything: Sequence[str]) -> dict[str, datetime]:
    """Returns when each benchmark was run last."""
    last: dict[str, datetime] = {}
    for run in runs:
        title = run.split("\n", 1)[0].split(" of ", 1)[1]
        names = everything if title == "everything" else title.split(", ")
        date = run.split("- date: ", 1)[1].split(" UTC", 1)[0]
        when = datetime.strptime(date, "%Y-%m-%d %H:%M").replace(tzinfo=UTC)
        for name in names:
            last.setdefault(name, when)
    return last


def packages_of(path: Path) -> tuple[str, ...]:
    """Returns the packages that a benchmark measures: those that it imports, and its helpers in this folder."""
    packages: set[str] = set()
    waiting, seen = [path], {path}
    while waiting:
        text = waiting.pop().read_text()
        if any(word in text for word in _WORDS_OF_A_SERVER):
            packages.update(_OF_THE_SERVER)
        for name in _imported(text):
            if name.startswith("packhorse."):
                packages.add(".".join(name.split(".")[:2]))
            helper = _HERE / f"{name}.py"
            if helper.exists() and helper not in seen and name not in ("workload", "harness"):
                seen.add(helper)
                waiting.append(helper)
    return tuple(sorted(packages))


def _imported(text: str) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names.append(node.module)
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return names


def _changed(packages: Sequence[str]) -> datetime | None:
    """Returns when the newest commit to one of the packages was written; None if there is none.

    It is the author's date, because a rebase renews the committer's.
    """
    origins = [find_spec(package) for package in packages]
    folders = [str(Path(spec.origin).parent) for spec in origins if spec is not None and spec.origin]
    if not folders:
        return None
    command = ["git", "log", "-1", "--format=%aI", "--", *folders]
    answer = subprocess.run(command, cwd=_HERE, capture_output=True, text=True, check=True).stdout.strip()
    return datetime.fromisoformat(answer).astimezone(UTC) if answer else None
