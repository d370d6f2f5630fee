"""RESULTS.md says when each benchmark was run, and which runs are older than the code that they measured."""

import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def benchmarks(monkeypatch):
    """The module `outdated` and the runs of RESULTS.md."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import harness
    import outdated

    yield outdated, harness.recorded_runs((BENCHMARKS / "RESULTS.md").read_text())
    for name in ("harness", "outdated"):
        sys.modules.pop(name, None)


def files():
    return {path.stem.removeprefix("bench_").replace("_", "-"): path for path in BENCHMARKS.glob("bench_*.py")}


def test_every_benchmark_measures_packages_that_exist(benchmarks):
    outdated, runs = benchmarks
    for name, path in files().items():
        assert outdated.packages_of(path), name
    assert outdated.packages_of(BENCHMARKS / "bench_few_lengths.py") == ("packhorse.client", "packhorse.packing")
    assert "packhorse.server" in outdated.packages_of(BENCHMARKS / "bench_first_bin.py")
    assert set(outdated.last_runs(runs, [])) <= set(files())


def test_a_row_that_was_measured_again_stands_once(benchmarks):
    import harness

    rows = [harness.Row(what="bins", size=size, ours=ours) for size, ours in (("8", "1"), ("8", "2"), ("64", "3"))]
    facts = {"date": "2026-05-01 08:00 UTC"}
    older = harness.recorded_run("everything", [*rows, harness.Row(what="masks", size="8", ours="4")], facts, [])
    newer = harness.recorded_run("packers", rows[:2], facts, [])
    text = harness.markdown(harness.without_outdated([newer, older]))
    kept_newer, kept_older = harness.recorded_runs(text)
    assert kept_newer.count("| bins | 8 |") == 2
    assert "| bins | 8 |" not in kept_older
    assert "| bins | 64 |" in kept_older
    assert "| masks | 8 |" in kept_older
    assert kept_older.count("| what | size |") == 1
    assert [run.rstrip() for run in harness.without_outdated([newer])] == [newer.rstrip()]


def test_a_run_is_outdated_once_its_code_changes(benchmarks, monkeypatch):
    outdated, _ = benchmarks
    changed = datetime(2026, 5, 2, 12, 0, tzinfo=UTC)
    monkeypatch.setattr(outdated, "_changed", lambda packages: changed)
    few = {name: path for name, path in files().items() if name in ("masks", "planning", "tls")}
    runs = [
        "## Run of masks, tls\n\n- date: 2026-05-02 12:00 UTC\n",
        "## Run of everything\n\n- date: 2026-05-01 08:00 UTC\n",
    ]
    assert [each.name for each in outdated.outdated(runs, few, ["planning", "masks"])] == ["planning"]
    (never, old) = outdated.outdated(runs[1:], {name: few[name] for name in ("planning", "tls")}, ["planning"])
    assert str(never) == "planning: run 2026-05-01 08:00 UTC, packhorse.packing changed 2026-05-02 12:00 UTC"
    assert old.last_run is None
    assert "tls: never run" in str(old)


def test_two_benchmarks_of_a_run_may_use_the_same_tokens(monkeypatch):
    """`run.py` runs served-tokens, then peer-ranks, in one workspace."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    before = set(sys.modules)
    import bench_peer_ranks
    import bench_served_tokens
    from workload import Sizes, Workspace

    names = Sizes.__dataclass_fields__
    workspace = Workspace(Sizes(**{**dict.fromkeys(names, 1), "small": 400, "medium": 200}))
    first = bench_served_tokens.prepared(workspace)
    assert bench_peer_ranks.prepared(workspace) == first
    assert Path(first[0]).exists()
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(BENCHMARKS)):
            sys.modules.pop(name)
