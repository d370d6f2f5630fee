"""Figures of context plans: as the benchmark simulates them, and what `inspect` and `plan context` print of them."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from packhorse.analysis import HistogramInput, compare_context_plans, context_plan, dataset_report, price_of
from packhorse.analysis.commands.inspect import command as inspect
from packhorse.analysis.commands.plan import command as plan
from packhorse.dataset import PlanOptions, open_prepared
from packhorse.epoch import PlanIndex
from packhorse.packing import counts_of_templates, pack_context
from packhorse.prepare import prepare
from packhorse.topology import ContextRule, Topology

OPTIONS = PlanOptions(max_seq_len=4096, tokens_per_rank=512, align=16)


def lengths(number: int = 3000) -> list[int]:
    return np.clip(np.random.default_rng(7).lognormal(5, 1.4, number), 1, 4096).astype(int).tolist()


def run(command: Any, *arguments: str) -> str:
    result = CliRunner().invoke(command, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize(("cap", "received", "groups"), [(110, 0, 2), (110, 1_024, 1), (300, 1_024, 4)])
def test_figures_are_the_benchmark_s(monkeypatch: pytest.MonkeyPatch, cap: int, received: int, groups: int) -> None:
    """The benchmark takes the bins of eight optimizer steps from an assignment, step by step."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    from bench_context_plans import _ours

    rule = ContextRule(512, 8, cap)
    templates = pack_context(Counter(lengths()), rule).templates
    index = PlanIndex.build(templates, counts_of_templates(templates), rule.max_seq_len)
    found, _ = _ours(lengths(), rule, 8 * groups, received)
    bandwidth = price_of(1) / received if received else 0
    accumulation = index.num_bins // (groups * 8)
    ours = context_plan(index, rule, context_groups=[groups], accumulation=accumulation, bandwidth=bandwidth)
    assert ours.waiting[groups] == pytest.approx(found.waiting)
    assert ours.parallel_share == pytest.approx(found.parallel, rel=0.05)
    assert ours.communication == pytest.approx(found.communication, rel=0.05)
    assert sum(each.tokens for each in ours.shared) == sum(lengths())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shared") / "long"
    prepare(lengths=lengths(), output=folder, plan=OPTIONS)
    return folder


def test_inspect_tells_who_waits_and_what_is_sent(folder: Path) -> None:
    flags = ("--world-size", "16", "--accumulation", "8", "--bandwidth", "100")
    facts = json.loads(run(inspect, str(folder), "--json", *flags))
    assert facts["waiting"] == []
    shared = facts["context_plan"]
    assert (shared["tokens_per_rank"], shared["max_context_parallel"], shared["accumulation"]) == (512, 8, 8)
    assert [each["number"] for each in shared["context_groups"]] == [1, 2, 4, 16, 64]
    assert shared["context_groups"][-1]["waiting"] is None  # the epoch has fewer bins than one optimizer step
    free = dataset_report(open_prepared(folder), run=Topology(world_size=16, accumulation=8), bandwidth=0).context_plan
    assert free is not None
    assert free.communication == 0 < shared["communication"]
    shown = run(inspect, str(folder), *flags)
    assert "shared bins: 8 ranks with 512 tokens each share a bin, cost cap 300 %" in shown
    for said in ("waiting at every micro-step, balance micro-step, accumulation 8, at 100 GB/s", "too few bins"):
        assert said in " ".join(shown.split())
    assert "waiting: give --world-size" not in shown
    served = run(inspect, folder.name, "--target", f"embedded:{folder.parent}")
    assert served.endswith("\nlong: 8 ranks with 512 tokens each share a bin, cost cap 300 %\n")
    with pytest.raises(ValueError, match="world_size 12 is not a multiple of 8, the ranks that share a bin"):
        run(inspect, str(folder), "--world-size", "12")


def test_plan_context_compares_rules(folder: Path, tmp_path: Path) -> None:
    plans = json.loads(run(plan, "context", str(folder), "--world-size", "16", "--json"))
    assert [(each["tokens_per_rank"], each["cost_cap_percent"]) for each in plans] == [
        (size, cap) for size in (2048, 1024, 512, 256) for cap in (110, 300)
    ]
    own = next(each for each in plans if (each["tokens_per_rank"], each["cost_cap_percent"]) == (512, 300))
    assert own["num_bins"] == open_prepared(folder).manifest.num_bins
    histogram = tmp_path / "counts.json"
    histogram.write_text(json.dumps(Counter(lengths())))
    flags = ("--max-seq-len", "4096", "--align", "16", "--tokens-per-rank", "512", "--cost-cap-percent", "300")
    assert json.loads(run(plan, "context", str(histogram), *flags, "--world-size", "16", "--json")) == [own]
    assert "4,096, at 200 GB/s" in run(plan, "context", str(folder))


def test_a_rule_that_the_ranks_do_not_suit_is_refused() -> None:
    source = HistogramInput(name="counts", counts=Counter(lengths()), options=None)
    for size, message in (
        (100, "power of two times tokens_per_rank 100"),
        (512, "not a multiple of the 8 ranks of a bin"),
    ):
        with pytest.raises(ValueError, match=message):
            compare_context_plans(source, replace(OPTIONS, align=1), tokens_per_rank=[size], world_size=12)
    with pytest.raises(ValueError, match="max_seq_len 4096 and world_size 15 are not both even"):
        compare_context_plans(source, OPTIONS, world_size=15)
