"""`Rollouts`: queries and responses as a trainer gives them; `FlatRollouts`: the same, checked and in flat arrays.

Owns every check of queries, responses and their tokens' values. Leaves laying rows end to end to `flat_rows`, bins to
`steps`, and the batches to `pack` and `tree_batch`.

Legend: R rollouts, A tokens of all responses together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from packhorse.rollouts.flat_rows import (
    BOOLS,
    INTEGERS,
    NUMBERS,
    check_finite,
    flatten,
    one_each,
    refuse_flaws,
    rows_of_tokens,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rollouts:
    """Rollouts with the values of their tokens. Legend: R rollouts.

    A row, of tokens or of their values, is a list, array or tensor of its own length, without padding.

    Example:
        >>> Rollouts(queries=[[1, 2], [3]], responses=[[7], [8, 9]], advantages=[0.5, -0.5]).advantages
        [0.5, -0.5]

    Raises:
        ValueError: there is no rollout, or a field does not have one entry for each query; the message names it.
    """

    queries: Sequence[Any]
    """R rows of token ids, each with at least one."""
    responses: Sequence[Any]
    """R rows of token ids, each with at least one. Repeat a query for each of its responses."""
    tool_masks: Sequence[Any] | None = None
    """R rows with one entry for each response token: 1 or True if a tool wrote it (the opposite of open-instruct's
    `masks`). None if tools wrote nothing.
    """
    advantages: Any = None
    """One number for each rollout, or R rows with one for each response token; None to leave them out."""
    logprobs: Sequence[Any] | None = None
    """R rows: the log-probability of each response token when it was generated. The values of tools' tokens are
    ignored.
    """
    reference_logprobs: Sequence[Any] | None = None
    """R rows like `logprobs`, under the reference policy."""
    rewards: Any = None
    """One number for each rollout, or R rows with one for each response token."""
    dones: Any = None
    """Bool [R], False for a rollout that was cut off before its end; None if all are finished."""
    group_ids: Any = None
    """Integers [R], equal for responses to the same query; None if rollouts with equal queries are a group."""
    policy_versions: Any = None
    """Integers [R], at least 0, of at most 1,024 versions: the version of the policy that wrote each rollout. Each
    version is packed separately. None to leave them out.
    """

    def __post_init__(self) -> None:
        """Checks that every field has one entry for each query."""
        num_rollouts = len(self.queries)
        if num_rollouts == 0:
            raise ValueError("queries is empty: there is no rollout to pack")
        for field in fields(self):
            values = getattr(self, field.name)
            if values is not None and len(values) != num_rollouts:
                raise ValueError(f"{field.name} has {len(values)} entries for {num_rollouts} queries")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FlatRollouts:
    """Checked rollouts, in flat arrays."""

    sequences: list[NDArray[np.integer]]
    """Query and response of every rollout, joined: R arrays of integers [length]."""
    query_lengths: NDArray[np.int64]
    """Tokens of each query: int64 [R], at least 1."""
    response_lengths: NDArray[np.int64]
    """Tokens of each response: int64 [R], at least 1."""
    response_starts: NDArray[np.int64]
    """Index of each response's first token among all A: int64 [R]."""
    is_tool: NDArray[np.bool_]
    """Whether a tool wrote a token: bool [A]."""
    values: dict[str, NDArray[np.float32]]
    """Name → value of each token, for those of advantages, logprobs, reference_logprobs and rewards that were given:
    float32 [A]."""
    dones: NDArray[np.bool_]
    """Whether a rollout came to its end: bool [R]."""
    group_of: NDArray[np.int64]
    """Number of every rollout's group, from 0 without gaps: int64 [R]."""
    has_group_ids: bool
    """Whether the trainer gave groups; otherwise rollouts with equal queries are a group."""
    policy_versions: NDArray[np.int64] | None
    """Version of the policy that wrote each rollout: int64 [R], at least 0; None if none was given."""

    @classmethod
    def of(cls, given: Rollouts, max_seq_len: int) -> Self:
        """Checks and flattens rollouts.

        Raises:
            ValueError: a field is wrong; the message names it and the rollout.
        """
        query_tokens, query_lengths = flatten("queries", given.queries, INTEGERS)
        response_tokens, response_lengths = flatten("responses", given.responses, INTEGERS)
        _check_lengths(query_lengths, response_lengths, max_seq_len)
        by_query = np.split(query_tokens.astype(np.int64, copy=False), np.cumsum(query_lengths)[:-1])
        by_response = np.split(response_tokens, np.cumsum(response_lengths)[:-1])
        is_tool = np.zeros(len(response_tokens), dtype=np.bool_)
        if given.tool_masks is not None:
            is_tool = rows_of_tokens("tool_masks", given.tool_masks, response_lengths, BOOLS + INTEGERS) != 0
        return cls(
            sequences=[np.concatenate(pair) for pair in zip(by_query, by_response, strict=True)],
            query_lengths=query_lengths,
            response_lengths=response_lengths,
            response_starts=np.cumsum(response_lengths) - response_lengths,
            is_tool=is_tool,
            values=_values(given, response_lengths, is_tool),
            dones=np.ones(len(by_query), dtype=np.bool_)
            if given.dones is None
            else one_each("dones", given.dones, BOOLS),
            group_of=_number_groups(by_query, given.group_ids),
            has_group_ids=given.group_ids is not None,
            policy_versions=None if given.policy_versions is None else _versions(given.policy_versions),
        )

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of every rollout: int64 [R]."""
        return self.query_lengths + self.response_lengths

    @property
    def num_trained(self) -> NDArray[np.int64]:
        """Trained tokens of every rollout: int64 [R]."""
        # `reduceat` sums from each start to the next: right, because no response is empty.
        num_of_tools = np.add.reduceat(self.is_tool, self.response_starts, dtype=np.int64)
        return self.response_lengths - num_of_tools

    @property
    def version_numbers(self) -> NDArray[np.int64] | None:
        """Policy versions, renumbered from 0 in ascending order without gaps: int64 [R]; None if none was given."""
        if self.policy_versions is None:
            return None
        return np.unique(self.policy_versions, return_inverse=True)[1].astype(np.int64)

    @property
    def num_groups(self) -> int:
        """How many groups there are."""
        return int(self.group_of.max()) + 1


def _check_lengths(query_lengths: NDArray[np.int64], response_lengths: NDArray[np.int64], max_seq_len: int) -> None:
    """Raises a ValueError for an empty query or response, or a rollout longer than a bin."""
    lengths = query_lengths + response_lengths
    refuse_flaws(
        (
            (query_lengths == 0, "an empty query leaves its first response token nothing to be predicted from"),
            (response_lengths == 0, "an empty response has nothing to train on; drop it first"),
            (lengths > max_seq_len, f"that is over max_seq_len {max_seq_len}; raise it, or truncate or drop it first"),
        ),
        lambda i: f"rollout {i} has {lengths[i]} tokens (query {query_lengths[i]}, response {response_lengths[i]})",
    )


def _values(
    given: Rollouts, response_lengths: NDArray[np.int64], is_tool: NDArray[np.bool_]
) -> dict[str, NDArray[np.float32]]:
    """Checks and flattens advantages, log-probabilities and rewards: `FlatRollouts.values`."""
    values = {}
    if given.advantages is not None:
        of_tokens = _per_rollout_or_token("advantages", given.advantages, response_lengths, at_last=False)
        values["advantages"] = np.where(is_tool, 0, of_tokens)
    for name in ("logprobs", "reference_logprobs"):
        if (rows := getattr(given, name)) is not None:
            values[name] = np.where(is_tool, 0, rows_of_tokens(name, rows, response_lengths, NUMBERS))
    if given.rewards is not None:
        values["rewards"] = _per_rollout_or_token("rewards", given.rewards, response_lengths, at_last=True)
    for name, of_tokens in values.items():
        check_finite(name, of_tokens, response_lengths)
    return {name: of_tokens.astype(np.float32) for name, of_tokens in values.items()}


def _per_rollout_or_token(
    name: str, given: Any, response_lengths: NDArray[np.int64], *, at_last: bool
) -> NDArray[np.floating]:
    """Returns the value of each token, [A], from rows, or from one number for each rollout.

    A rollout's number goes to the rollout's last token if `at_last`, and otherwise to all its response tokens.
    """
    if np.ndim(given[0]) > 0:
        return rows_of_tokens(name, given, response_lengths, NUMBERS)
    of_rollouts = one_each(name, given, NUMBERS)
    if not at_last:
        return np.repeat(of_rollouts, response_lengths)
    of_tokens = np.zeros(int(response_lengths.sum()), dtype=np.float64)
    of_tokens[np.cumsum(response_lengths) - 1] = of_rollouts
    return of_tokens


def _versions(given: Any) -> NDArray[np.int64]:
    """Returns the policy versions: int64 [R]; a ValueError if one is below 0."""
    versions = one_each("policy_versions", given, INTEGERS).astype(np.int64)
    if (versions < 0).any():
        index = int((versions < 0).argmax())
        raise ValueError(f"policy_versions[{index}] is {versions[index]}; a version must be at least 0")
    return versions


def _number_groups(queries: list[NDArray[np.int64]], group_ids: Any) -> NDArray[np.int64]:
    """Numbers groups from 0, by ascending id; without ids, equal queries are a group, in order of first appearance."""
    if group_ids is not None:
        return np.unique(one_each("group_ids", group_ids, INTEGERS), return_inverse=True)[1].astype(np.int64)
    numbers: dict[bytes, int] = {}
    return np.array([numbers.setdefault(query.tobytes(), len(numbers)) for query in queries], dtype=np.int64)
