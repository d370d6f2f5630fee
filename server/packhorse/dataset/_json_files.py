"""The JSON files beside the pool: counts and templates, written and read.

Owns the form of counts.json and templates.json. The manifest, which is JSON too, is in `manifest`; whether counts and
templates fit each other is checked in `load`.
"""

import json
from collections import Counter
from collections.abc import Mapping

from packhorse.packing import Template, canonical_templates


def parse_counts(data: bytes) -> Counter[int]:
    """Reads the bytes of counts.json; raises a ValueError if they are something else."""
    content = _parsed(data)
    if not isinstance(content, dict) or not all(_is_count(count) for count in content.values()):
        raise ValueError("not an object of length → count")
    counts = Counter({int(length): count for length, count in content.items()})
    if not all(_is_length(length) for length in counts):
        raise ValueError("not every length is in [1, 2^31)")
    return counts


def parse_templates(data: bytes) -> Counter[Template]:
    """Reads the bytes of templates.json; raises a ValueError if they are something else."""
    content = _parsed(data)
    templates: Counter[Template] = Counter()
    for entry in content if isinstance(content, list) else [None]:
        match entry:
            case [[*lengths], multiplicity] if all(map(_is_length, lengths)) and _is_count(multiplicity):
                templates[tuple(lengths)] += multiplicity
            case _:
                raise ValueError("not a list of [[lengths], multiplicity]")
    return templates


def _is_length(value: object) -> bool:
    return type(value) is int and 0 < value < 2**31


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _parsed(data: bytes) -> object:
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def render_counts(counts: Mapping[int, int]) -> bytes:
    """Returns the bytes of counts.json: length → count, by ascending length."""
    return _json({str(length): int(counts[length]) for length in sorted(counts)})


def render_templates(templates: Mapping[Template, int]) -> bytes:
    """Returns the bytes of templates.json: a list of [[lengths], multiplicity] in canonical order."""
    return _json([[list(template), multiplicity] for template, multiplicity in canonical_templates(templates)])


def _json(content: object) -> bytes:
    return (json.dumps(content, separators=(",", ":")) + "\n").encode()
