"""The last step of preparing: everything beside the pool, the digest, and the manifest that seals the folder.

Owns which facts the manifest states; leaves reading data and filling the pool to `prepare`.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from packhorse.dataset._fields import as_object
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
    POOLS,
    RESOURCES,
    SKIPPED,
    STARTS,
    TEMPLATES,
    render_counts,
    render_templates,
    sha256_of,
)
from packhorse.dataset.manifest import (
    EPOCH_VERSION,
    MOST_LISTED,
    Facts,
    InputRecord,
    Manifest,
    PlanOptions,
    ResourceRecord,
    SkippedRow,
)
from packhorse.epoch import Chain, first_difference
from packhorse.packing import PackingPlan, canonical_templates

PARTS = ("counts", "options", "templates", "pools")
"""The digest's parts, in order: the length histogram; max_seq_len and every option; the plan; which ids there are."""

_PART_DIGITS = 16
_STAGES = "stages="
_MOST_STAGES = 6
"""Stages that a mixture's digest names: the last ones, whose digests cover those before."""


def fingerprint(value: object) -> str:
    """Returns 16 hexadecimal digits that depend on a JSON-like value alone (keys are sorted)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_PART_DIGITS]


def make_digest(parts: Mapping[str, Any]) -> str:
    """Returns the digest of a dataset: the fingerprints of its PARTS, joined by hyphens."""
    return "-".join(fingerprint(parts[name]) for name in PARTS)


def differing_parts(expected: str, actual: str) -> list[str]:
    """Returns the names of the parts in which two digests differ; all of them where one is not such a digest.

    Example:
        >>> differing_parts("11-22-33-44", "11-22-55-44")
        ['templates']
    """
    pairs = list(zip(expected.split("-"), actual.split("-"), strict=False))
    if len(pairs) != len(PARTS) or expected.count("-") != actual.count("-"):
        return list(PARTS)
    return [name for name, (a, b) in zip(PARTS, pairs, strict=True) if a != b]


def mixture_digest(chain: Chain) -> str:
    """Returns the digest of a mixture: where each of its last stages begins, and the digest of all up to there.

    Example:
        >>> mixture_digest(((0, "aa"), (500, "bb")))
        'stages=0:aa,500:bb'
    """
    return _STAGES + ",".join(f"{first}:{digest}" for first, digest in chain[-_MOST_STAGES:])


def parts_at(expected: str, chain: Chain) -> int | None:
    """Returns the position of the run at which a mixture departs from the one that a run began with.

    Example:
        >>> parts_at("stages=0:aa", ((0, "aa"), (500, "bb"))), parts_at("11-22-33-44", ((0, "aa"),))
        (500, 0)

    Args:
        expected: the digest that the run began with.
        chain: of the mixture.

    Returns:
        None if they are the same; 0 if they have nothing in common, as with a digest of something else.
    """
    begun = _chain_of(expected)
    if not begun:
        return 0
    alike = [number for number, stage in enumerate(chain) if stage == begun[0]]
    return first_difference(begun, chain[alike[0] :]) if alike else 0


def _chain_of(digest: str) -> Chain:
    """Returns what a mixture's digest names; nothing for any other digest."""
    pairs = [pair.partition(":") for pair in digest.removeprefix(_STAGES).split(",")]
    if not digest.startswith(_STAGES) or not all(first.isdecimal() for first, _, _ in pairs):
        return ()
    return tuple((int(first), of_stage) for first, _, of_stage in pairs)


_Record = TypeVar("_Record", InputRecord, SkippedRow)


def seal(folder: Path, counts: Mapping[int, int], plan: PackingPlan, options: PlanOptions, facts: Facts) -> Manifest:
    """Writes the counts, the plan and the manifest into a folder that has its arrays, and returns the manifest.

    Args:
        folder: with the arrays that `facts` says there are.
        counts: room in tokens → number of sequences, or of groups; with resources, class → number of groups.
        plan: of exactly these counts.
        options: what shaped the plan.
        facts: what was counted.
    """
    (folder / COUNTS).write_bytes(render_counts(counts))
    (folder / TEMPLATES).write_bytes(render_templates(plan.templates))
    total_tokens, total_capacity = plan.total_tokens, plan.num_bins * plan.max_seq_len
    if facts.resources:
        total_tokens = _tokens_of_classes(folder, counts) - facts.rounding_tokens
    checksums = {name: sha256_of(folder / name) for name in (*DATA_FILES, *optional_files(facts))}
    manifest = Manifest(
        **{each.name: getattr(facts, each.name) for each in fields(facts)},
        options=options,
        algorithm=plan.algorithm,
        n_bins=plan.num_bins,
        total_tokens=total_tokens,
        total_capacity=total_capacity,
        efficiency=total_tokens / total_capacity,
        lower_bound=plan.lower_bound,
        distinct_lengths=len(counts),
        distinct_templates=len(plan.templates),
        plan_cut_off=plan.cut_off,
        checksums=checksums,
        digest=dataset_digest(counts, plan.templates, options, checksums, facts.resources),
    )
    (folder / MANIFEST).write_bytes(manifest.render())
    return manifest


def _tokens_of_classes(folder: Path, counts: Mapping[int, int]) -> int:
    tokens = np.load(folder / CLASSES, allow_pickle=False)[:, 0]
    return sum(int(tokens[number - 1]) * count for number, count in counts.items())


def optional_files(facts: Facts) -> list[str]:
    """Returns the names of the files that a folder has beside DATA_FILES."""
    inputs, groups, keys = facts.inputs, facts.groups, facts.keys
    present = {
        STARTS: facts.start_dtype is not None,
        OVER_LENGTH: facts.over_length.sequences > 0,
        GROUPS: groups is not None,
        MEMBERS: groups is not None,
        DROPPED_GROUPS: groups is not None and groups.n_dropped_listed > 0,
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


def write_records(path: Path, records: Iterable[InputRecord | SkippedRow]) -> None:
    """Writes a file of JSON lines, one for each record.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_records(Path(folder, "x.jsonl"), [SkippedRow(file="a.parquet", row=7, reason="the id is null")])
        ...     print(Path(folder, "x.jsonl").read_text(), end="")
        {"file": "a.parquet", "row": 7, "reason": "the id is null"}
    """
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(asdict(record)) + "\n" for record in records)


def read_records(path: Path, kind: type[_Record]) -> Iterator[_Record]:
    """Yields the records of a file that `write_records` wrote.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_records(Path(folder, "x.jsonl"), [SkippedRow(file="a.parquet", row=7, reason="the id is null")])
        ...     [record.row for record in read_records(Path(folder, "x.jsonl"), SkippedRow)]
        [7]
    """
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield kind(**json.loads(line))


def dataset_digest(
    counts: Mapping[int, int],
    templates: Mapping[tuple[int, ...], int],
    options: PlanOptions,
    checksums: Mapping[str, str],
    resources: Iterable[ResourceRecord] = (),
) -> str:
    """Returns the digest of a dataset with these counts, templates and options, and array files of these checksums."""
    names = (POOLS, STARTS, GROUPS, MEMBERS, RESOURCES, CLASSES)
    arrays = [checksums[name] for name in names if name in checksums]
    caps = {"caps": found} if (found := [[each.name, each.cap, each.cost] for each in resources]) else {}
    parts: dict[str, Any] = {
        "counts": {str(length): count for length, count in counts.items()},
        "options": {**as_object(options), "epoch_version": EPOCH_VERSION, **caps},
        "templates": [[list(template), multiplicity] for template, multiplicity in canonical_templates(templates)],
        "pools": arrays if len(arrays) > 1 else arrays[0],
    }
    return make_digest(parts)
