"""Building rows of rollouts that share prefixes, beside TRL's `TreeRow`, and how many tokens such rows save.

Owns the three cases; both build the same row from the same arrays, in this one process, and the rows are compared.
Without TRL its column stays empty. Then the same rollouts are packed for ranks that wait for each other.
"""

import time
from typing import Any

import numpy as np
import torch
from harness import Row, interleaved, timed
from workload import Workspace

from packhorse.rollouts import (
    PackOptions,
    PrefixTree,
    Rollouts,
    TreeBatch,
    pack_rollouts,
    prefix_sharing,
    tree_row,
)
from packhorse.topology import DEFAULT_COST_LINEAR

NOTE = (
    "prefix-trees: tokens of rollouts a second that become rows, on one core, one row for each prompt; TRL's is "
    "`TreeRow.add` and `pack`. The share is tokens that a model computes with trees, of those without. Packs are of "
    "`pack_rollouts` with trees and a balance at every micro-step; the slowest rank is told in parts of the mean."
)

CASES = [
    ("64 prompts of 512 × 8 answers of about 850", 64, 8, 512, 850, 0.67),
    ("64 prompts of 2,048 × 8 answers of about 850", 64, 8, 2048, 850, 0.38),
    ("32 conversations of 12,000 × 8 answers of about 850", 32, 8, 12_000, 850, 0.25),
]
"""(name, prompts, answers to each, tokens of a prompt, mean tokens of an answer, share to reach)."""


def rollouts(prompts: int, answers: int, prompt: int, mean: int) -> list[list[np.ndarray[Any, Any]]]:
    """Returns each prompt's sequences: int64 [length]."""
    random = np.random.default_rng(0)
    groups = []
    for _ in range(prompts):
        tokens = random.integers(0, 32_000, prompt)
        lengths = np.clip(random.lognormal(np.log(mean) - 0.18, 0.6, answers), 8, 8192).astype(int)
        groups.append([np.concatenate((tokens, random.integers(0, 32_000, length))) for length in lengths])
    return groups


def beside(groups: list[list[np.ndarray[Any, Any]]], prompt: int) -> list[dict[str, Any]]:
    """Returns what `tree_row` needs beside the sequences of each group."""
    random = np.random.default_rng(1)
    return [
        {
            "trained": [np.arange(len(row)) >= prompt for row in rows],
            "logprobs": [random.normal(size=len(row)).astype(np.float32) for row in rows],
            "advantages": random.normal(size=len(rows)).astype(np.float32),
        }
        for rows in groups
    ]


def theirs(samples: list[list[dict[str, Any]]]) -> list[dict[str, torch.Tensor]]:
    """TRL's rows."""
    from trl.experimental.async_grpo.packing import TreeRow

    built = []
    for of_row in samples:
        row = TreeRow()
        for sample in of_row:
            row.add(sample)
        built.append(row.pack())
    return built


PACKS = [(CASES[0], 16_384, 16), (CASES[1], 16_384, 16), (CASES[2], 32_768, 16), (CASES[2], 32_768, 64)]
"""(case, tokens of a pack, ranks)."""


def packs(case: tuple[Any, ...], max_seq_len: int, ranks: int) -> Row:
    """Packs a case's rollouts for ranks."""
    name, prompts, answers, prompt, mean, target = case
    groups = rollouts(prompts, answers, prompt, mean)
    given = Rollouts(
        queries=[row[:prompt] for group in groups for row in group],
        responses=[row[prompt:] for group in groups for row in group],
    )
    batches: list[TreeBatch] = []

    def work() -> None:
        batches[:] = pack_rollouts(
            given,
            max_seq_len=max_seq_len,
            pad_token_id=0,
            world_size=ranks,
            prefixes="tree",
            packing=PackOptions(balance="micro-step"),
            flatten=True,
        )

    seconds = min(interleaved(3, lambda: timed(work))[0])
    sharing = prefix_sharing(batches)
    share = sharing.num_distinct_tokens / sharing.num_tokens
    costs = np.array([int((2 * batch["position_ids"] + 1 + DEFAULT_COST_LINEAR).sum()) for batch in batches])
    in_steps = costs.reshape(-1, ranks)
    slowest = in_steps.max(axis=1).sum() / in_steps.mean(axis=1).sum()
    return Row(
        what=f"packs of prefix trees, {name}, {ranks} ranks",
        size=f"{len(batches)} packs of {max_seq_len:,} tokens",
        ours=f"{share:.2f} of the tokens are computed; the slowest rank takes {slowest:.2f}; {1000 * seconds:.0f} ms",
        peer="",
        ratio=None,
        target=f"≤ {target}, slowest ≤ 1.2",
        reached=round(share, 2) <= target and slowest <= 1.2,
    )


def run(workspace: Workspace) -> list[Row]:
    """Measures, and returns rows."""
    try:
        import trl.experimental.async_grpo.packing
    except ImportError:
        has_trl = False
    else:
        has_trl = True
    rows = []
    for name, prompts, answers, prompt, mean, target in CASES:
        groups = rollouts(prompts, answers, prompt, mean)
        values = beside(groups, prompt)
        samples = [
            [
                {
                    "input_ids": torch.from_numpy(tokens),
                    "completion_mask": torch.from_numpy(mask.astype(np.int64)),
                    "old_log_probs": torch.from_numpy(logprobs),
                    "advantage": float(advantage),
                    "group_id": 0,
                }
                for tokens, mask, logprobs, advantage in zip(
                    group, one["trained"], one["logprobs"], one["advantages"], strict=True
                )
            ]
            for group, one in zip(groups, values, strict=True)
        ]
        built: list[Any] = [None, None]

        def ours(groups: Any = groups, values: Any = values, built: Any = built) -> float:
            def work() -> None:
                built[0] = [
                    tree_row(group, one["trained"], logprobs=one["logprobs"], advantages=one["advantages"])
                    for group, one in zip(groups, values, strict=True)
                ]

            return timed(work, clock=time.thread_time)

        def trl(samples: Any = samples, built: Any = built) -> float:
            def work() -> None:
                built[1] = theirs(samples)

            return timed(work, clock=time.thread_time)

        times = interleaved(3, ours, trl) if has_trl else interleaved(3, ours)
        if has_trl:
            for one, other in zip(*built, strict=True):
                assert all(torch.equal(one[key], other[key]) for key in other), "the rows differ"
        num_tokens = sum(len(row) for group in groups for row in group)
        rates = [num_tokens / min(each) / 1e6 for each in times]
        share = sum(PrefixTree.of(group).num_tokens for group in groups) / num_tokens
        rows.append(
            Row(
                what=f"rows of prefix trees, {name}",
                size=f"{num_tokens / 1e6:.1f} M tokens",
                ours=f"{rates[0]:.1f} M tokens a second; {share:.2f} of the tokens are computed",
                peer=f"{rates[1]:.2f} M tokens a second, TRL" if has_trl else "",
                ratio=rates[0] / rates[1] if has_trl else None,
                target=f"≥ 10 M a second, ≤ {target}",
                reached=rates[0] >= 10 and round(share, 2) <= target,
            )
        )
    return [*rows, *(packs(*case) for case in PACKS)]
