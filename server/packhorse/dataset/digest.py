"""The digest of a dataset: four fingerprints, so that two digests show what differs.

Owns what each fingerprint covers, and comparing digests. A mixture's digest is in `files/mixture_digest`.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from packhorse.dataset._fields import as_object
from packhorse.dataset.facts import ResourceRecord
from packhorse.dataset.layout import CLASSES, GROUPS, MEMBERS, POOLS, RESOURCES, STARTS
from packhorse.dataset.manifest import EPOCH_VERSION
from packhorse.dataset.plan_options import PlanOptions
from packhorse.packing import canonical_templates

PARTS = ("counts", "options", "templates", "pools")
"""The digest's parts, in order: the counts; max_seq_len and every option; the plan; the arrays that bins come from."""


def fingerprint(value: object) -> str:
    """Returns 16 hexadecimal digits that depend only on a JSON-like value (keys are sorted)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def make_digest(parts: Mapping[str, Any]) -> str:
    """Returns the digest of a dataset: the fingerprints of its PARTS, joined by hyphens."""
    return "-".join(fingerprint(parts[name]) for name in PARTS)


def differing_parts(expected: str, actual: str) -> list[str]:
    """Returns the names of the parts in which two digests differ; all names if one is not a dataset's digest.

    Example:
        >>> differing_parts("11-22-33-44", "11-22-55-44")
        ['templates']
    """
    pairs = list(zip(expected.split("-"), actual.split("-"), strict=False))
    if len(pairs) != len(PARTS) or expected.count("-") != actual.count("-"):
        return list(PARTS)
    return [name for name, (a, b) in zip(PARTS, pairs, strict=True) if a != b]


def dataset_digest(
    counts: Mapping[int, int],
    templates: Mapping[tuple[int, ...], int],
    options: PlanOptions,
    checksums: Mapping[str, str],
    resources: Iterable[ResourceRecord] = (),
) -> str:
    """Returns the digest of a dataset.

    Args:
        counts: room in tokens → number of sequences or groups; with resources, class → number of groups.
        templates: template → multiplicity.
        options: the options that shaped the plan.
        checksums: file name → SHA-256. Only the arrays that bins come from are used; keys, for example, are not.
        resources: the dataset's resources.
    """
    names = (POOLS, STARTS, GROUPS, MEMBERS, RESOURCES, CLASSES)
    arrays = [checksums[name] for name in names if name in checksums]
    # Without resources the key "caps" is left out, so that older digests stay the same.
    caps = [[each.name, each.cap, each.cost] for each in resources]
    parts: dict[str, Any] = {
        "counts": {str(length): count for length, count in counts.items()},
        "options": {**as_object(options), "epoch_version": EPOCH_VERSION, **({"caps": caps} if caps else {})},
        "templates": [[list(template), multiplicity] for template, multiplicity in canonical_templates(templates)],
        "pools": arrays if len(arrays) > 1 else arrays[0],  # else older digests would change
    }
    return make_digest(parts)
