"""What tests of rollouts share: random rollouts, and what packing must make of them, token by token."""

from dataclasses import dataclass

import numpy as np
import pytest


@dataclass
class Some:
    """Random rollouts as lists, as an inference engine gives them."""

    queries: list
    responses: list
    tool_masks: list
    advantages: list
    logprobs: list

    def options(self):
        """Keywords of pack_rollouts."""
        return {"tool_masks": self.tool_masks, "advantages": self.advantages, "logprobs": self.logprobs}


@pytest.fixture(scope="session")
def some():
    """Function: R rollouts of at most 20 + 40 tokens; every second query has two responses."""

    def make(num_rollouts, seed=0):
        random = np.random.default_rng(seed)
        queries = [random.integers(5, 900, random.integers(1, 21)).tolist() for _ in range(num_rollouts)]
        for index in range(1, num_rollouts, 3):
            queries[index] = list(queries[index - 1])
        responses = [random.integers(5, 900, random.integers(1, 41)).tolist() for _ in range(num_rollouts)]
        return Some(
            queries,
            responses,
            [(random.random(len(r)) < 0.3).tolist() for r in responses],
            random.normal(size=num_rollouts).tolist(),
            [(-random.random(len(r))).tolist() for r in responses],
        )

    return make


@pytest.fixture(scope="session")
def rows_of():
    """Function: for each row of some batches, the indices of the rollouts in it."""

    def split(batches):
        rows = []
        for batch in batches:
            parts = np.split(batch["ids"].numpy(), batch["layout"].row_ends[:-1])
            rows += [part.tolist() for part in parts]
        return rows

    return split
