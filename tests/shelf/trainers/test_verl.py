"""What verl asks of an assignment (verl#6555), read as its `DynamicCPScheduler` does, and by that where it is there."""

from collections import Counter
from functools import partial
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from packhorse.trainers import VerlScheduler

TOKENS_PER_RANK = 16


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, list[int]]:
    num_ranks = draw(st.sampled_from([1, 2, 4, 8]))
    return num_ranks, draw(st.lists(st.integers(1, TOKENS_PER_RANK * num_ranks), min_size=1, max_size=40))


@given(cases())
def test_every_rank_has_sequences_and_members_are_aligned_neighbours(case: tuple[int, list[int]]) -> None:
    num_ranks, lengths = case
    scheduler = VerlScheduler(TOKENS_PER_RANK, cp_size=1, dp_size=num_ranks)
    steps = scheduler.get_groups_and_subsamples([(100 + i, length) for i, length in enumerate(lengths)])
    seen = Counter[int]()
    for ranks in steps:
        assert len(ranks) == num_ranks
        for rank, numbers in enumerate(ranks):
            assert numbers
            members = [peer for peer, others in enumerate(ranks) if others == numbers]
            assert members == list(range(members[0], members[0] + len(members)))
            assert members[0] % len(members) == 0
            assert sum(lengths[number - 100] for number in numbers) <= TOKENS_PER_RANK * len(members)
            if rank == members[0]:
                seen.update(numbers)
    assert seen == Counter(range(100, 100 + len(lengths)))


def test_what_it_cannot_assign_is_refused() -> None:
    with pytest.raises(ValueError, match="cp_size · dp_size must be a power of two, got 6"):
        VerlScheduler(8, cp_size=2, dp_size=3)
    with pytest.raises(ValueError, match="microbatch_group_size_per_vp_stage must be None"):
        VerlScheduler(8, cp_size=2, dp_size=2, microbatch_group_size_per_vp_stage=2)
    with pytest.raises(ValueError, match="a sequence of 33 tokens does not fit 32"):
        VerlScheduler(8, cp_size=2, dp_size=2).get_groups_and_subsamples([(0, 33)])


@pytest.mark.skipif(find_spec("verl") is None, reason="verl is not installed")
def test_verl_s_own_code_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from tensordict import TensorDict
    from verl.utils import dynamic_cp_scheduler

    monkeypatch.setattr(dynamic_cp_scheduler, "get_megatron_dynamic_cp_scheduler_cls", lambda: VerlScheduler)
    lengths = [40, 12, 9, 9, 5, 30, 16, 3, 2, 14]
    rows = [torch.arange(length) + 100 * number for number, length in enumerate(lengths)]
    batch = TensorDict({"input_ids": torch.nested.as_nested_tensor(rows, layout=torch.jagged)}, [len(rows)])
    seen = Counter[int]()
    for rank in range(4):
        group = SimpleNamespace(size=lambda: 4, rank=partial(int, rank))
        planner = dynamic_cp_scheduler.DynamicCPScheduler(TOKENS_PER_RANK, dp_size=2, cp_size=2)
        for micro_batch in planner.schedule(batch, group, tp_size=1):
            if micro_batch[dynamic_cp_scheduler.DCP_GROUP_LEADER]:
                seen.update(row[0].item() // 100 for row in micro_batch["input_ids"].unbind())
    assert seen == Counter(range(len(lengths)))
