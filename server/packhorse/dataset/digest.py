"""A dataset's digest: four fingerprints in a row, so that two digests tell what differs.

Owns how a digest is made and compared; leaves where its parts come from to `layout`.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from packhorse.epoch import Chain, parting

PARTS = ("counts", "options", "templates", "pools")
"""The digest's parts, in order: the length histogram; max_seq_len and every option; the plan; which ids there are."""

_PART_DIGITS = 16
_STAGES = "stages="
_MOST_STAGES = 6
"""Stages that a mixture's digest names: the last ones, each of which stands for all before it."""


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
        None where they are the same; 0 where they have nothing in common, as with a digest of something else.
    """
    begun = _chain_of(expected)
    if not begun:
        return 0
    alike = [number for number, stage in enumerate(chain) if stage == begun[0]]
    return parting(begun, chain[alike[0] :]) if alike else 0


def _chain_of(digest: str) -> Chain:
    """Returns what a mixture's digest names; nothing for any other digest."""
    pairs = [pair.partition(":") for pair in digest.removeprefix(_STAGES).split(",")]
    if not digest.startswith(_STAGES) or not all(first.isdecimal() for first, _, _ in pairs):
        return ()
    return tuple((int(first), of_stage) for first, _, of_stage in pairs)
