"""`bins_of_trees`: which rollouts share a bin (a pack), if their common prefixes are computed once.

Owns the limits of such a bin, and when groups are halved so that ranks wait less. Leaves items to `tree_items`, placing
items in bins to the service's planner, and the batch to `tree_batch`.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from packhorse.client import Client
from packhorse.client.options import Balance, PackOptions
from packhorse.client.transport.requests import Resources, budget_messages
from packhorse.rollouts.given import FlatRollouts
from packhorse.rollouts.steps import bins_of_steps
from packhorse.rollouts.tree_items import SharedPrefixes, Span, finer_items, items_that_fit

ENOUGH = 1.2
"""Ranks are even enough if the slowest takes at most this many times the mean."""

_COST_LIMITS = (1.2, 0.6, 0.3, 0.15)
"""What an item may cost at each further try to even ranks, in multiples of a mean pack; costlier ones are halved."""


def bins_of_trees(
    client: Client | None,
    rollouts: FlatRollouts,
    max_seq_len: int,
    *,
    world_size: int,
    batch_size: int,
    packing: PackOptions,
    resources: Resources,
    max_trained_tokens: int | None = None,
) -> list[NDArray[np.int64]]:
    """Packs rollouts by the distinct tokens that they take; a group is one item, if possible.

    If the slowest rank takes more than ENOUGH times the mean, and there is a balance, tries again with the costliest
    items halved. Returns the bins for which ranks wait the shortest.

    The arguments are as in `pack_rollouts`. `rollouts` are checked, and none is longer than `max_seq_len`, the most
    distinct tokens in a bin. `max_sequences_per_bin` limits rollouts, not items.

    Returns:
        For each bin its rollouts, ascending in each item: int64.

    Raises:
        ValueError: a rollout takes more by itself than a bin holds; the message names it and the amount.
        InvalidRequestError: the service refuses.
    """
    limits = _limits(rollouts, packing, resources, max_trained_tokens)
    other_amounts = np.empty((len(rollouts.sequences), len(limits)), dtype=np.int64)
    for column, (amounts, _) in enumerate(limits.values()):
        other_amounts[:, column] = amounts
    versions = rollouts.version_numbers
    prefixes = SharedPrefixes.of(
        rollouts.sequences,
        rollouts.query_lengths,
        rollouts.group_of if rollouts.has_group_ids else None,
        other_amounts,
        kinds=versions,
    )

    def packed(items: list[Span]) -> _Packed:
        """Asks the planner to place items in bins."""
        num_tokens, *others = np.array([prefixes.amounts(span) for span in items]).T  # each has one entry for each item
        costs = np.array([prefixes.cost(span, packing.cost_linear) for span in items], dtype=np.int64)
        bins = bins_of_steps(
            client,
            num_tokens,
            max_seq_len,
            world_size=world_size,
            batch_size=batch_size,
            items_name="rollouts",
            # To the planner an item is one sequence, so the limit of rollouts is one of `limits` instead.
            packing=replace(packing, max_sequences_per_bin=None),
            # All rollouts of an item have the version of its first one.
            separate_by=None if versions is None else versions[prefixes.order[[begin for begin, _ in items]]],
            resources={name: (taken, cap) for taken, (name, (_, cap)) in zip(others, limits.items(), strict=True)},
            costs=costs,
        )
        return _Packed(items, bins, costs, np.array([costs[members].sum() for members in bins]))

    capacities = np.array([max_seq_len, *(cap for _, cap in limits.values())], dtype=np.int64)
    bins_per_step = world_size * batch_size
    best = last = packed(items_that_fit(prefixes, capacities, bins_per_step))
    for cost_limit in () if packing.balance is Balance.NONE else _COST_LIMITS:
        if best.unevenness(bins_per_step, packing) <= ENOUGH:
            break
        finer = finer_items(prefixes, last.items, last.costs, cost_limit * last.bin_costs.mean())
        if finer is not None:
            last = packed(finer)
            best = min(best, last, key=lambda attempt: attempt.slowest_cost(bins_per_step, packing))
    return [best.rollouts(members, prefixes) for members in best.bins]


@dataclass(frozen=True, slots=True, eq=False)
class _Packed:
    """Items placed in bins, and how even the bins are. Legend: M items."""

    items: list[Span]
    """The items: M ranges in the order of prefixes."""
    bins: list[NDArray[np.int64]]
    """For each bin the indices of its items: int64."""
    costs: NDArray[np.int64]
    """Cost of each item: int64 [M]."""
    bin_costs: NDArray[np.int64]
    """Cost of each bin: int64 [bins]."""

    def slowest_cost(self, bins_per_step: int, packing: PackOptions) -> int:
        """Returns the cost that all ranks wait for.

        Ranks wait for the slowest bin of each step, or with balance `optimizer-step` for the rank with the largest sum.
        """
        in_steps = self.bin_costs.reshape(-1, bins_per_step)  # [steps, bins of all ranks]
        if packing.balance is Balance.OPTIMIZER_STEP:
            return int(in_steps.sum(axis=0).max())
        return int(in_steps.max(axis=1).sum())

    def unevenness(self, bins_per_step: int, packing: PackOptions) -> float:
        """Returns `slowest_cost` as a multiple of the cost if all ranks were even; at least 1."""
        return self.slowest_cost(bins_per_step, packing) * bins_per_step / max(int(self.bin_costs.sum()), 1)

    def rollouts(self, members: NDArray[np.int64], prefixes: SharedPrefixes) -> NDArray[np.int64]:
        """Returns the rollouts of a bin, item after item; `members` are indices of the bin's items."""
        spans = [self.items[item] for item in members.tolist()]
        of_items = [np.sort(prefixes.order[begin:end]) for begin, end in spans]
        return np.concatenate([np.zeros(0, dtype=np.int64), *of_items])  # int64 also if the bin is empty


def _limits(
    rollouts: FlatRollouts, packing: PackOptions, resources: Resources, max_trained_tokens: int | None
) -> dict[str, tuple[NDArray[np.int64], int]]:
    """Returns what rollouts take besides tokens: name → (amount for each rollout, int64 [R]; cap of a bin).

    Raises:
        ValueError: an amount does not fit the rollouts, a name is taken, or a rollout exceeds a cap by itself.
    """
    num_rollouts = len(rollouts.sequences)
    limits: dict[str, tuple[NDArray[np.int64], int]] = {}
    if max_trained_tokens is not None:
        limits["trained tokens"] = (rollouts.num_trained, max_trained_tokens)
    if packing.max_sequences_per_bin is not None:
        limits["rollouts"] = (np.ones(num_rollouts, dtype=np.int64), packing.max_sequences_per_bin)
    for budget in budget_messages(resources):
        if len(budget.amounts) != num_rollouts:
            raise ValueError(f"resources[{budget.name!r}] must have one integer for each of {num_rollouts} rollouts")
        if budget.name in limits:
            raise ValueError(f"resources[{budget.name!r}] is the name of another cap here; name the resource otherwise")
        limits[budget.name] = np.array(budget.amounts, dtype=np.int64), budget.cap
    for name, (amounts, cap) in limits.items():
        if (amounts > cap).any():
            index = int((amounts > cap).argmax())
            raise ValueError(
                f"rollout {index} takes {amounts[index]} {name}, over the cap of {cap}; raise it, or drop the rollout"
            )
    return limits
