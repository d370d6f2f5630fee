"""The last step of preparing: writing counts, templates, and the manifest, which completes the folder.

Owns `seal`, and which files a folder has for given facts. Leaves reading data and filling the pool to `prepare`, the
manifest's fields to `manifest`, and what the digest covers to `digest`.
"""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import numpy as np

from packhorse.dataset.digest import dataset_digest
from packhorse.dataset.facts import MOST_LISTED, Facts
from packhorse.dataset.json_files import render_counts, render_templates
from packhorse.dataset.layout import (
    CLASSES,
    COUNTS,
    DATA_FILES,
    DROPPED_GROUPS,
    GROUPS,
    INPUTS,
    KEY_ENDS,
    KEY_IDS,
    KEY_ORDER,
    KEYS,
    MANIFEST,
    MEMBER_ORDER,
    MEMBERS,
    OVER_LENGTH,
    RESOURCES,
    SKIPPED,
    STARTS,
    TEMPLATES,
)
from packhorse.dataset.manifest import Manifest
from packhorse.dataset.plain_files import sha256_of
from packhorse.dataset.plan_options import PlanOptions
from packhorse.packing import PackingPlan


def seal(folder: Path, counts: Mapping[int, int], plan: PackingPlan, options: PlanOptions, facts: Facts) -> Manifest:
    """Writes the counts, the plan and the manifest into a folder that has its arrays, and returns the manifest.

    Args:
        folder: a folder with the arrays that `optional_files(facts)` names, and pools.npy.
        counts: room in tokens → number of sequences, or of groups; with resources, class → number of groups.
        plan: a plan of exactly these counts.
        options: the options that shaped the plan.
        facts: facts that were counted while reading the input.
    """
    (folder / COUNTS).write_bytes(render_counts(counts))
    (folder / TEMPLATES).write_bytes(render_templates(plan.templates))
    total_tokens, total_capacity = plan.total_tokens, plan.num_bins * plan.max_seq_len
    if facts.resources:  # the plan knows numbers of classes in place of rooms
        total_tokens = _tokens_of_classes(folder, counts) - facts.rounding_tokens
    checksums = {name: sha256_of(folder / name) for name in (*DATA_FILES, *optional_files(facts))}
    manifest = Manifest(
        **{each.name: getattr(facts, each.name) for each in fields(facts)},
        options=options,
        algorithm=plan.algorithm,
        num_bins=plan.num_bins,
        total_tokens=total_tokens,
        total_capacity=total_capacity,
        efficiency=total_tokens / total_capacity,
        lower_bound=plan.lower_bound,
        num_rooms=len(counts),
        num_templates=len(plan.templates),
        plan_cut_off=plan.cut_off,
        checksums=checksums,
        digest=dataset_digest(counts, plan.templates, options, checksums, facts.resources),
    )
    (folder / MANIFEST).write_bytes(manifest.render())
    return manifest


def _tokens_of_classes(folder: Path, counts: Mapping[int, int]) -> int:
    """Returns the tokens of all groups, each at the size of its class: class n is row n - 1, and column 0 is tokens."""
    tokens = np.load(folder / CLASSES, allow_pickle=False)[:, 0]
    return sum(int(tokens[number - 1]) * count for number, count in counts.items())


def optional_files(facts: Facts) -> list[str]:
    """Returns the names of the files that a folder with these facts has in addition to DATA_FILES and the manifest."""
    inputs, groups, keys = facts.inputs, facts.groups, facts.keys
    present = {
        STARTS: facts.start_dtype is not None,
        OVER_LENGTH: facts.over_length.sequences > 0,
        GROUPS: groups is not None,
        MEMBERS: groups is not None,
        DROPPED_GROUPS: groups is not None and groups.num_dropped_listed > 0,
        MEMBER_ORDER: groups is not None and not groups.ids_ascend,
        RESOURCES: bool(facts.resources),
        CLASSES: bool(facts.resources),
        KEYS: keys is not None,
        KEY_ENDS: keys is not None,
        KEY_ORDER: keys is not None,
        KEY_IDS: keys is not None and keys.has_ids,
        INPUTS: inputs is not None and inputs.num_files > MOST_LISTED,
        SKIPPED: inputs is not None and inputs.skipped.rows > MOST_LISTED,
    }
    return [name for name, is_there in present.items() if is_there]
