"""Lines for people about what tokenizing left out: fields of rows that are not in the tokens, and whole rows.

Owns the wording. The files with these facts are in `ledger`.
"""

import json
import os
from collections.abc import Mapping
from typing import Any

from packhorse.formats.beside_tokens import unused_path
from packhorse.formats.left_out import left_out_of, left_out_text


def unused_lines(unused: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Returns a line for each field of which some values are not in the tokens.

    Example:
        >>> unused_lines({"tools": {"rows": 1, "values": 1, "first": "a.jsonl, line 1"}})
        ['not used   tools, of 1 row (1 value), e.g. a.jsonl, line 1']

    Args:
        unused: as `FineTuningSummary.unused` has it.
    """
    return [
        f"not used   {name}, of {entry['rows']:,} row{'s' if entry['rows'] != 1 else ''} ({entry['values']:,} "
        f"value{'s' if entry['values'] != 1 else ''}), e.g. {entry['first']}"
        for name, entry in unused.items()
    ]


def recorded_lines(output: str | os.PathLike[str]) -> list[str]:
    """Returns lines about `X.unused.json` and `X.skipped.jsonl` beside token files; none if there are no such files.

    Example:
        >>> recorded_lines("no-such-tokens")
        []

    Args:
        output: the prefix X, or one of its files.
    """
    counts = left_out_of(output)
    path = unused_path(output)
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"unused": {}}
    # `left_out_of` counts a field too, as "not used: NAME"; here it has a line of its own.
    rest = {name: count for name, count in counts.items() if not name.startswith("not used: ")}
    return [*unused_lines(content["unused"]), *([f"left out   {left_out_text(rest)}"] if rest else [])]
