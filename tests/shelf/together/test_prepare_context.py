"""Datasets planned for dynamic context parallelism: what they hold, what is refused, and streams under any groups."""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packhorse.cli.shared.flags import field_texts
from packhorse.client import PackedDataset, Topology, connect
from packhorse.dataset import PlanOptions, open_prepared
from packhorse.parallel import context_batch
from packhorse.prepare import Grouping, prepare
from packhorse.topology import DEFAULT_COST_CAP_PERCENT, ContextRule, RemainderPolicy

RULE = PlanOptions(max_seq_len=512, tokens_per_rank=64, align=16, cost_cap_percent=105)
NAME = "long"
DIGEST = "1a355dcdebadcb56-0880217c067c986f-d8ec2e650eb29993-3a7b9db48d1f0cd2"
"""Whatever the default cap is: the manifest says the dataset's own."""


def lengths() -> np.ndarray:
    return np.clip(np.random.default_rng(3).lognormal(4, 1.2, 400), 1, 512).astype(np.int64)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("context")
    prepare(lengths=lengths(), output=folder / NAME, plan=RULE)
    return folder


def test_the_manifest_says_how_bins_are_laid_out(root: Path) -> None:
    manifest = open_prepared(root / NAME).manifest
    assert manifest.options == RULE
    assert manifest.digest == DIGEST
    assert manifest.algorithm == "context"
    assert manifest.options.context is not None
    assert manifest.options.context.max_context_parallel == 8


def test_a_plain_plan_says_nothing_of_it(tmp_path: Path) -> None:
    prepare(lengths=lengths(), output=tmp_path / "plain", max_seq_len=512)
    assert b"tokens_per_rank" not in (tmp_path / "plain" / "manifest.json").read_bytes()
    assert b"cost_cap_percent" not in (tmp_path / "plain" / "manifest.json").read_bytes()


def test_the_default_cap_is_written_down(tmp_path: Path) -> None:
    """So a later release may have another."""
    assert f"By default {DEFAULT_COST_CAP_PERCENT}." in field_texts(PlanOptions)["cost_cap_percent"]
    options = PlanOptions(max_seq_len=512, tokens_per_rank=64)
    prepare(lengths=lengths(), output=tmp_path / NAME, plan=options)
    content = json.loads((tmp_path / NAME / "manifest.json").read_text())
    assert content["options"]["cost_cap_percent"] == DEFAULT_COST_CAP_PERCENT


def test_a_server_tells_the_rule_and_batches_know_it(root: Path, make_server: Callable[..., Any]) -> None:
    with make_server(root) as server, connect(server.target) as client:
        assert client.get_dataset(NAME).context_rule == RULE.context
        with client.stream_bins(NAME) as stream:
            assert stream.header.context_rule == RULE.context
        tokens = [np.zeros(length, dtype=np.int64) for length in lengths()]
        batch = next(iter(PackedDataset(server.target, NAME, tokens, batch_size=1)))
        assert ContextRule(*batch["context_rule"]) == RULE.context


def test_a_mixture_has_a_rule_where_its_components_share_it(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / NAME, tmp_path / "one")
    shutil.copytree(root / NAME, tmp_path / "two")
    prepare(lengths=lengths(), output=tmp_path / "other", plan=replace(RULE, tokens_per_rank=128))
    for name, second in (("alike", "two"), ("unlike", "other")):
        (tmp_path / f"{name}.mixture.toml").write_text(f"[[stages]]\nweights = {{one = 1, {second} = 1}}\n")
    with connect(f"embedded:{tmp_path}") as client:
        assert client.get_dataset("alike").context_rule == RULE.context
        assert client.get_dataset("unlike").context_rule is None


def test_every_sequence_comes_once_and_in_its_part_whatever_the_number_of_groups(root: Path) -> None:
    rule = RULE.context
    assert rule is not None
    seen: Counter[int] = Counter()
    position, parts = 0, Counter[int]()
    with connect(f"embedded:{root}") as client:
        num_bins = client.get_dataset(NAME).num_bins
        for groups, num_steps in ((3, 4), (1, 5), (5, None)):  # killed and resumed with other groups
            topology = Topology(
                world_size=groups, batch_size=1, balance="micro-step", accumulation=2, start_position=position
            )
            for rank in range(groups):
                block_of_rank = 0
                for block in client.stream_bins(NAME, rank=rank, topology=topology, seed=1, epoch=0):
                    for one in range(len(block)):
                        if num_steps is not None and block_of_rank >= num_steps // 2 * 2:
                            break
                        block_of_rank += 1
                        end = int(block.bin_ends[one])
                        begin = int(block.bin_ends[one - 1]) if one else 0
                        seen.update(block.ids[begin:end].tolist())
                        laid = rule.lay_out(block.lengths[begin:end].tolist())
                        parts.update(part.num_ranks for part in laid)
            position += groups * (num_steps // 2 * 2) if num_steps else 0
        assert position < num_bins
    assert seen == Counter(range(400))
    assert set(parts) == {1, 2, 4, 8}


@pytest.mark.parametrize(
    ("groups", "remainder"),
    [*((3, each) for each in RemainderPolicy), (1, "spread"), (1, "empty"), (5, "repeat"), (5, "drop")],
)
def test_every_rank_has_something_in_every_micro_step(root: Path, groups: int, remainder: str) -> None:
    """However the last step of an epoch is filled, and as many micro-steps as every other rank."""
    rule, ids = RULE.context, np.arange(400)
    assert rule is not None
    remainder = RemainderPolicy(remainder)
    topology = Topology(remainder=remainder, accumulation=3, balance="micro-step")
    tokens = [np.full(length, 1, dtype=np.int64) for length in lengths()]
    seen, num_steps = Counter[int](), set()
    for group in range(groups):
        options = {"batch_size": 1, "rank": (group, groups), "topology": topology}
        batches = list(PackedDataset(f"embedded:{root}", NAME, tokens, **options))
        num_steps.add(len(batches))
        for rank in range(group * rule.max_context_parallel, (group + 1) * rule.max_context_parallel):
            for batch in batches:
                part = context_batch(batch, rule, rank)
                assert part.input_ids.numel() == part.labels.numel() >= 1
                assert (
                    part.input_ids.numel() * part.cp_size == part.cu_seqlens[-1] <= rule.tokens_per_rank * part.cp_size
                )
                assert part.first_rank + part.cp_rank == rank
                if part.cp_rank == 0:
                    seen.update(part.ids.tolist())
    assert len(num_steps) == 1
    counts = np.array([seen[id] for id in ids])
    assert (counts == 1).all() or remainder in (RemainderPolicy.DROP, RemainderPolicy.REPEAT)
    assert (counts <= 1).all() or remainder is RemainderPolicy.REPEAT
    assert (counts >= 1).all() or remainder is RemainderPolicy.DROP


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"tokens_per_rank": 100}, "max_seq_len 512 must be a power of two times tokens_per_rank 100"),
        ({"tokens_per_rank": 0}, "tokens_per_rank must be an integer of at least 1"),
        (
            {"max_seq_len": 192, "tokens_per_rank": 64},
            "max_seq_len 192 must be a power of two times tokens_per_rank 64",
        ),
        ({"tokens_per_rank": 64, "algorithm": "best-fit"}, "leave algorithm out"),
        ({"tokens_per_rank": 64, "max_sequences_per_bin": 9}, "max_sequences_per_bin does not go with tokens_per_rank"),
        ({"tokens_per_rank": 64, "cost_cap_percent": 90}, "cost_cap_percent"),
        ({"cost_cap_percent": 120}, "cost_cap_percent is for plans with tokens_per_rank"),
    ],
)
def test_what_makes_no_plan_is_refused(tmp_path: Path, words: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prepare(lengths=lengths(), output=tmp_path / "x", plan=PlanOptions(**{"max_seq_len": 512, **words}))
    assert not (tmp_path / "x").exists()


def test_groups_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="tokens_per_rank does not go with groups"):
        prepare(lengths=lengths(), output=tmp_path / "x", plan=RULE, grouping=Grouping(size=2))
