"""How many streams a run has, as `audit` and `bench` print it."""

from packhorse.topology.checks import counted


def streams_shape(world_size: int, workers_per_rank: int) -> str:
    """Returns the streams of a run: "2 ranks × 4 workers"."""
    return f"{counted(world_size, 'rank')} × {counted(workers_per_rank, 'worker')}"
