"""What tokenizing left out of token files: `X.unused.json` by field and `X.skipped.jsonl` by row, beside `X.bin`.

Owns reading how much the two files hold. Leaves their names to `beside_tokens`, and writing them to
`packhorse.tokenize`.
"""

import json
import os
from collections import Counter

from packhorse.formats.beside_tokens import skipped_path, unused_path

_NOT_USED = "not used: "
"""Prefix of a count's name if it counts rows with a field that is not in the tokens; the field's name follows."""
_SKIPPED = "skipped: "
"""Prefix of a count's name if it counts rows that are not in the tokens; the reason follows."""
_OPEN = "turns without an end"
"""Name of the count of trained turns that no special token ends."""


def left_out_of(tokens: str | os.PathLike[str]) -> dict[str, int]:
    """Returns what tokenizing left out → the number of rows, or of turns; empty if neither file says anything.

    Example:
        >>> left_out_of("no-such-tokens")
        {}

    Raises:
        ValueError: one of the two files is damaged.
    """
    found: Counter[str] = Counter()
    unused, skipped = unused_path(tokens), skipped_path(tokens)
    try:
        if unused.is_file():
            content = json.loads(unused.read_text(encoding="utf-8"))
            found.update({_NOT_USED + name: entry["rows"] for name, entry in content["unused"].items()})
            found.update({_OPEN: content["open_turns"]})
        if skipped.is_file():
            with skipped.open(encoding="utf-8") as lines:
                found.update(_SKIPPED + json.loads(line)["reason"] for line in lines)
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{unused} or {skipped.name} is damaged: {error!r}; tokenize again, or remove it") from None
    return {name: count for name, count in found.items() if count}


def left_out_text(counts: dict[str, int]) -> str:
    """Returns the counts of `left_out_of` as a text for people.

    Example:
        >>> left_out_text({"not used: tools": 812, "skipped: bad": 2, "turns without an end": 5})
        'tools of 812 rows; 2 rows (bad 2); the end of 5 turns, which have none'
    """
    parts = [f"{field} of {_counted(count, 'row')}" for field, count in _with_prefix(counts, _NOT_USED).items()]
    if skipped := _with_prefix(counts, _SKIPPED):
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(skipped.items()))
        parts.append(f"{_counted(sum(skipped.values()), 'row')} ({reasons})")
    if turns := counts.get(_OPEN):
        parts.append(f"the end of {_counted(turns, 'turn')}, which have none")
    return "; ".join(parts)


def _with_prefix(counts: dict[str, int], prefix: str) -> dict[str, int]:
    """Returns the counts whose names begin with a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): count for name, count in counts.items() if name.startswith(prefix)}


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' if count != 1 else ''}"
