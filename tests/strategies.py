"""Topologies and context rules for property tests."""

from hypothesis import strategies as st

from packhorse.topology import Balance, BatchPhase, BatchSchedule, ContextRule, RemainderPolicy, Topology

CONTEXT_RULES = st.builds(
    ContextRule,
    tokens_per_rank=st.integers(1, 64),
    max_context_parallel=st.sampled_from([1, 2, 4, 8, 16]),
    cost_cap_percent=st.integers(100, 300),
    cost_linear=st.sampled_from([1, 10, 100, 24_576]),
)


def topologies(num_bins, policies=tuple(RemainderPolicy), balances=tuple(Balance)):
    """Topologies of an epoch of `num_bins` bins, any start and balance, few ranks and workers."""
    return st.builds(
        Topology,
        world_size=st.integers(1, 5),
        workers_per_rank=st.integers(1, 4),
        batch_size=st.integers(1, 4),
        start_position=st.integers(0, num_bins),
        remainder=st.sampled_from(policies),
        accumulation=st.integers(1, 4),
        balance=st.sampled_from(balances),
        cost_linear=st.sampled_from([0, 3, 10**6]),
    )


@st.composite
def scheduled(draw, num_bins, epochs=1, policies=tuple(RemainderPolicy), balances=tuple(Balance)):
    """(A topology whose batch size changes within some epochs, its phases by bins of the run).

    Stages that begin at tokens do so with bins of 8.
    """
    world_size, accumulation = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    begins = draw(st.lists(st.integers(1, num_bins * epochs + 1), max_size=4, unique=True).map(sorted))
    phases = [(begin, draw(st.integers(1, 3)) * world_size * accumulation) for begin in (0, *begins)]
    written = [
        BatchPhase(begin * 8 + draw(st.integers(0, 7)), True, size)
        if begin and draw(st.booleans())
        else BatchPhase(begin, False, size)
        for begin, size in phases
    ]
    topology = Topology(
        world_size=world_size,
        workers_per_rank=draw(st.integers(1, 3)),
        batch_schedule=BatchSchedule(tuple(written)),
        start_position=draw(st.integers(0, num_bins)),
        remainder=draw(st.sampled_from(policies)),
        accumulation=accumulation,
        balance=draw(st.sampled_from(balances)),
    )
    return topology, phases
