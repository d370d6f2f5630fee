"""Context plans: every sequence once, parts within their ranks, and each bin laid out as it was planned."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import CONTEXT_RULES

from packhorse.packing import pack_context
from packhorse.topology import ContextRule


@st.composite
def cases(draw: st.DrawFn) -> tuple[ContextRule, dict[int, int]]:
    rule = draw(CONTEXT_RULES)
    lengths = st.integers(1, rule.max_seq_len)
    return rule, draw(st.dictionaries(lengths, st.integers(1, 40), min_size=1, max_size=30))


def plainly_packed(rule: ContextRule, counts: dict[int, int]) -> Counter[int]:
    """Ranks → parts, sequence by sequence: the rule said again."""
    parts: list[list[int]] = []  # tokens left, cost left, ranks
    for room in sorted(Counter(counts).elements(), reverse=True):
        cost = rule.cost(room)
        fitting = [part for part in parts if part[0] >= room and part[1] >= cost]
        if fitting:
            part = min(fitting, key=lambda part: (rule.fits(part[0], part[1]), *part))
        else:
            ranks = rule.num_ranks(room)
            part = [ranks * rule.tokens_per_rank, ranks * rule.cost_per_rank, ranks]
            parts.append(part)
        part[0] -= room
        part[1] -= cost
    return Counter(part[2] for part in parts)


@given(cases())
def test_every_sequence_comes_once_and_each_bin_finds_its_parts_again(case: tuple[ContextRule, dict[int, int]]) -> None:
    rule, counts = case
    plan = pack_context(counts, rule)
    planned: Counter[int] = Counter()
    found: Counter[int] = Counter()
    for template, multiplicity in plan.templates.items():
        assert list(template) == sorted(template, reverse=True)
        planned.update({room: copies * multiplicity for room, copies in Counter(template).items()})
        for part in rule.lay_out(template):
            found[part.num_ranks] += multiplicity
            rooms = [template[index] for index in part.indices]
            assert part.first_rank % part.num_ranks == 0
            assert sum(rooms) <= part.num_ranks * rule.tokens_per_rank
            is_alone_on_all = len(rooms) == 1 and part.num_ranks == rule.max_context_parallel
            assert is_alone_on_all or sum(map(rule.cost, rooms)) <= part.num_ranks * rule.cost_per_rank
    assert planned == Counter(counts)
    assert found == plainly_packed(rule, counts)


@given(CONTEXT_RULES, st.lists(st.integers(1, 64), max_size=40))
def test_any_bin_has_a_layout(rule: ContextRule, rooms: list[int]) -> None:
    while sum(rooms) > rule.max_seq_len:
        rooms.pop()
    parts = rule.lay_out(rooms)
    assert sorted(index for part in parts for index in part.indices) == list(range(len(rooms)))
    ranks = [rank for part in parts for rank in range(part.first_rank, part.first_rank + part.num_ranks)]
    assert ranks == list(range(len(ranks)))
    assert len(ranks) <= rule.max_context_parallel
    assert all(part.first_rank % part.num_ranks == 0 for part in parts)


def test_a_bin_of_another_plan_is_one_part() -> None:
    rule = ContextRule(tokens_per_rank=10, max_context_parallel=4)
    assert [part.num_ranks for part in rule.lay_out([6, 6, 6, 6, 6])] == [4]


def test_too_much_is_refused() -> None:
    with pytest.raises(ValueError, match="a bin of 41 tokens does not fit 40"):
        ContextRule(10, 4).lay_out([41])


@pytest.mark.parametrize("num_ranks", [0, 2, 6])
def test_ranks_that_share_no_bins_are_refused(num_ranks: int) -> None:
    assert [ContextRule(8, 4).of_loader(rank, 8) for rank in (0, 3, 4, 7)] == [(0, 2), (0, 2), (1, 2), (1, 2)]
    with pytest.raises(
        ValueError, match=f"{num_ranks} ranks are not a multiple of max_context_parallel 4; start a mul"
    ):
        ContextRule(8, 4).of_loader(0, num_ranks)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tokens_per_rank": 0}, "tokens_per_rank"),
        ({"max_context_parallel": 3}, "max_context_parallel must be a power of two, got 3"),
        ({"cost_cap_percent": 99}, "cost_cap_percent"),
        ({"cost_linear": 0}, "cost_linear"),
    ],
)
def test_a_rule_names_what_is_wrong(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ContextRule(**{"tokens_per_rank": 8, "max_context_parallel": 4, **arguments})
