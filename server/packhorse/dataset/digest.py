"""A dataset's digest: four fingerprints in a row, so that two digests tell what differs.

Owns how a digest is made and compared; leaves where its parts come from to `layout`.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

PARTS = ("counts", "options", "templates", "pools")
"""The digest's parts, in order: the length histogram; max_seq_len and every option; the plan; which ids there are."""

_PART_DIGITS = 16


def fingerprint(value: object) -> str:
    """Returns 16 hexadecimal digits that depend on a JSON-like value alone (keys are sorted)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_PART_DIGITS]


def make_digest(parts: Mapping[str, Any]) -> str:
    """Returns the digest of a dataset: the fingerprints of its PARTS, joined by hyphens."""
    return "-".join(fingerprint(parts[name]) for name in PARTS)


def differing_parts(expected: str, actual: str) -> list[str]:
    """Returns the names of the parts in which two digests differ; all of them where one is no digest of ours.

    Example:
        >>> differing_parts("11-22-33-44", "11-22-55-44")
        ['templates']
    """
    pairs = list(zip(expected.split("-"), actual.split("-"), strict=False))
    if len(pairs) != len(PARTS) or expected.count("-") != actual.count("-"):
        return list(PARTS)
    return [name for name, (a, b) in zip(PARTS, pairs, strict=True) if a != b]
