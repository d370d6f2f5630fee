"""Rollouts as a trainer gives them, checked and laid flat.

Owns every check of queries, responses and what belongs to their tokens; leaves where they go to `pack`.

Legend: R rollouts, A tokens of all responses end to end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from packhorse.client.rollouts._spans import as_array, flatten, refuse_flaws

_INTEGERS, _NUMBERS = "iu", "fiu"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GivenRollouts:
    """Rollouts with what belongs to the tokens of their responses."""

    sequences: list[NDArray[np.integer]]
    """Query and response of every rollout: R of integers [length]."""
    query_lengths: NDArray[np.int64]
    """int64 [R], at least 1."""
    response_lengths: NDArray[np.int64]
    """int64 [R], at least 1."""
    response_starts: NDArray[np.int64]
    """Where each response begins in A: int64 [R]."""
    is_tool: NDArray[np.bool_]
    """Tokens that tools wrote: bool [A]."""
    values: dict[str, NDArray[np.float32]]
    """What was given of advantages, logprobs, reference_logprobs and rewards, by these names: float32 [A]."""
    dones: NDArray[np.bool_]
    """Whether a rollout came to its end: bool [R]."""
    group_of: NDArray[np.int64]
    """Number of every rollout's group: int64 [R], each number from 0 to the greatest being there."""
    policy_versions: NDArray[np.int64] | None
    """Version of the policy that wrote each rollout: int64 [R], at least 0; None where none was given."""

    @classmethod
    def check(
        cls,
        queries: Sequence[Any],
        responses: Sequence[Any],
        *,
        max_seq_len: int,
        tool_masks: Sequence[Any] | None,
        advantages: Any,
        logprobs: Sequence[Any] | None,
        reference_logprobs: Sequence[Any] | None,
        rewards: Any,
        dones: Any,
        group_ids: Any,
        policy_versions: Any,
    ) -> Self:
        """Checks and flattens the arguments of `pack_rollouts`.

        Raises:
            ValueError: names the argument and the rollout.
        """
        num_rollouts = len(queries)
        if num_rollouts == 0:
            raise ValueError("queries is empty: there is no rollout to pack")
        given = {
            "responses": responses,
            "tool_masks": tool_masks,
            "advantages": advantages,
            "logprobs": logprobs,
            "reference_logprobs": reference_logprobs,
            "rewards": rewards,
            "dones": dones,
            "group_ids": group_ids,
            "policy_versions": policy_versions,
        }
        for name, values in given.items():
            if values is not None and len(values) != num_rollouts:
                raise ValueError(f"{name} has {len(values)} entries for {num_rollouts} queries")
        query_tokens, query_lengths = flatten("queries", queries, _INTEGERS)
        response_tokens, response_lengths = flatten("responses", responses, _INTEGERS)
        _check_lengths(query_lengths, response_lengths, max_seq_len)
        by_query = np.split(query_tokens.astype(np.int64, copy=False), np.cumsum(query_lengths)[:-1])
        by_response = np.split(response_tokens, np.cumsum(response_lengths)[:-1])

        is_tool = np.zeros(len(response_tokens), dtype=np.bool_)
        if tool_masks is not None:
            is_tool = _of_tokens("tool_masks", tool_masks, response_lengths, "b" + _INTEGERS) != 0
        values = {}
        if advantages is not None:
            of_tokens = _per_rollout_or_token("advantages", advantages, response_lengths, at_last=False)
            values["advantages"] = np.where(is_tool, 0, of_tokens)
        for name, rows in (("logprobs", logprobs), ("reference_logprobs", reference_logprobs)):
            if rows is not None:
                values[name] = np.where(is_tool, 0, _of_tokens(name, rows, response_lengths, _NUMBERS))
        if rewards is not None:
            values["rewards"] = _per_rollout_or_token("rewards", rewards, response_lengths, at_last=True)
        for name, of_tokens in values.items():
            _check_finite(name, of_tokens, response_lengths)
        return cls(
            sequences=[np.concatenate(pair) for pair in zip(by_query, by_response, strict=True)],
            query_lengths=query_lengths,
            response_lengths=response_lengths,
            response_starts=np.cumsum(response_lengths) - response_lengths,
            is_tool=is_tool,
            values={name: of_tokens.astype(np.float32) for name, of_tokens in values.items()},
            dones=np.ones(num_rollouts, dtype=np.bool_) if dones is None else _flat("dones", dones, "b"),
            group_of=_number_groups(by_query, group_ids),
            policy_versions=None if policy_versions is None else _versions(policy_versions),
        )

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of every rollout: int64 [R]."""
        return self.query_lengths + self.response_lengths

    @property
    def version_numbers(self) -> NDArray[np.int64] | None:
        """Policy versions numbered from 0 by their order: int64 [R]; None where none was given."""
        if self.policy_versions is None:
            return None
        return np.unique(self.policy_versions, return_inverse=True)[1].astype(np.int64)

    @property
    def num_groups(self) -> int:
        """How many groups there are."""
        return int(self.group_of.max()) + 1


def _check_lengths(query_lengths: NDArray[np.int64], response_lengths: NDArray[np.int64], max_seq_len: int) -> None:
    lengths = query_lengths + response_lengths
    refuse_flaws(
        (
            (query_lengths == 0, "an empty query leaves its first response token nothing to be predicted from"),
            (response_lengths == 0, "an empty response has nothing to train on; drop it first"),
            (lengths > max_seq_len, f"that is over max_seq_len {max_seq_len}; raise it, or truncate or drop it first"),
        ),
        lambda i: f"rollout {i} has {lengths[i]} tokens (query {query_lengths[i]}, response {response_lengths[i]})",
    )


def _of_tokens(name: str, rows: Sequence[Any], response_lengths: NDArray[np.int64], kinds: str) -> NDArray[Any]:
    """Rows with one entry for each token of their responses, end to end: [A]."""
    flat, lengths = flatten(name, rows, kinds)
    if (lengths != response_lengths).any():
        index = int((lengths != response_lengths).argmax())
        raise ValueError(
            f"{name}[{index}] has {lengths[index]} entries for a response of {response_lengths[index]} tokens"
        )
    return flat


def _per_rollout_or_token(
    name: str, given: Any, response_lengths: NDArray[np.int64], *, at_last: bool
) -> NDArray[np.floating]:
    """The same for rows or for one number a rollout, which stands at its last token or at all of them: [A]."""
    if np.ndim(given[0]) > 0:
        return _of_tokens(name, given, response_lengths, _NUMBERS)
    of_rollouts = _flat(name, given, _NUMBERS)
    if not at_last:
        return np.repeat(of_rollouts, response_lengths)
    of_tokens = np.zeros(int(response_lengths.sum()), dtype=np.float64)
    of_tokens[np.cumsum(response_lengths) - 1] = of_rollouts
    return of_tokens


def _check_finite(name: str, of_tokens: NDArray[np.floating], response_lengths: NDArray[np.int64]) -> None:
    if not np.isfinite(of_tokens).all():
        token = int(np.isfinite(of_tokens).argmin())
        ends = np.cumsum(response_lengths)
        index = int(np.searchsorted(ends, token, side="right"))
        raise ValueError(
            f"{name} of rollout {index} is {of_tokens[token]} at response token "
            f"{token - ends[index] + response_lengths[index]}, which is trained on"
        )


def _flat(name: str, given: Any, kinds: str) -> NDArray[Any]:
    array = as_array(given)
    if array.ndim != 1 or array.dtype.kind not in kinds:
        raise ValueError(f"{name} must hold one value of a type that fits for each rollout, got {array.dtype}")
    return array


def _versions(given: Any) -> NDArray[np.int64]:
    versions = _flat("policy_versions", given, _INTEGERS).astype(np.int64)
    if (versions < 0).any():
        index = int((versions < 0).argmax())
        raise ValueError(f"policy_versions[{index}] is {versions[index]}; a version must be at least 0")
    return versions


def _number_groups(queries: list[NDArray[np.int64]], group_ids: Any) -> NDArray[np.int64]:
    """Numbers groups from 0: by ascending id, or equal queries in the order in which they first appear."""
    if group_ids is not None:
        return np.unique(_flat("group_ids", group_ids, _INTEGERS), return_inverse=True)[1].astype(np.int64)
    numbers: dict[bytes, int] = {}
    return np.array([numbers.setdefault(query.tobytes(), len(numbers)) for query in queries], dtype=np.int64)
