"""Datasets planned for dynamic context parallelism: what they hold, what is refused, and streams under any groups."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from packhorse.client import Topology, connect
from packhorse.dataset import PlanOptions, open_prepared
from packhorse.prepare import Grouping, prepare

RULE = PlanOptions(max_seq_len=512, tokens_per_rank=64, align=16, cost_cap_percent=105)
NAME = "long"


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
    assert manifest.algorithm == "context"
    assert manifest.options.context is not None
    assert manifest.options.context.max_context_parallel == 8


def test_a_plain_plan_says_nothing_of_it(tmp_path: Path) -> None:
    prepare(lengths=lengths(), output=tmp_path / "plain", max_seq_len=512)
    assert b"tokens_per_rank" not in (tmp_path / "plain" / "manifest.json").read_bytes()
    assert b"cost_cap_percent" not in (tmp_path / "plain" / "manifest.json").read_bytes()


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
    ("words", "message"),
    [
        ({"tokens_per_rank": 100}, "max_seq_len 512 must be a power of two times tokens_per_rank 100"),
        ({"tokens_per_rank": 0}, "tokens_per_rank must be an integer of at least 1"),
        ({"max_seq_len": 192, "tokens_per_rank": 64}, "power of two"),
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
