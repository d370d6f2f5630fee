"""What of the rows is not in the tokens: the files beside the output that say so.

Owns the form of `X.skipped.jsonl`, a JSON object for each row that was left out and its reason, and of `X.unused.json`,
the fields of rows that are in. Leaves finding them to `_rows`, `columns` and `packhorse.sft`.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TextIO

from packhorse.formats.left_out import left_out_of, left_out_text, skipped_path, unused_path
from packhorse.storage import AtomicFiles

Reason = Literal["bad", "empty", "undecodable", "no_targets", "too_long"]
"""Why a row is left out: it cannot be read or encoded, it holds nothing, it is not UTF-8, it has no token to train on,
or it does not fit the cutoff."""


def open_ledger(output: str | os.PathLike[str]) -> TextIO:
    """Begins the ledger of a part."""
    return skipped_path(output).open("w", encoding="utf-8", newline="\n")


def write_entry(ledger: TextIO, row: str, reason: Reason, why: str) -> None:
    """Adds a row: where it is, and what is wrong with it."""
    ledger.write(json.dumps({"row": row, "reason": reason, "why": why}, ensure_ascii=False) + "\n")


def join_ledgers(output: str | os.PathLike[str], parts: Sequence[str | os.PathLike[str]]) -> Path | None:
    """Writes the ledger of an output from those of its parts, or removes an old one if no row was left out.

    Args:
        output: the prefix.
        parts: prefixes of the parts, in order.

    Returns:
        The file; None if there is none.
    """
    path = skipped_path(output)
    written = [part for part in map(skipped_path, parts) if part.is_file() and part.stat().st_size]
    if not written:
        path.unlink(missing_ok=True)
        return None
    with AtomicFiles([path], overwrite=True) as files:
        for part in written:
            files.files[0].write(part.read_bytes())
    return path


def write_unused(
    output: str | os.PathLike[str], *, sequences: int, open_turns: int, unused: Mapping[str, Mapping[str, Any]]
) -> None:
    """Writes what was not used, and how many trained turns have no end; replaces an earlier file."""
    content = {"sequences": sequences, "open_turns": open_turns, "unused": unused}
    path = unused_path(output)
    with AtomicFiles([path], overwrite=True) as files:
        files.files[0].write(json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n")


def unused_lines(unused: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Returns what was not used, for people: a line for each field.

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
    """Returns what `X.unused.json` and `X.skipped.jsonl` beside token files say, for people; nothing if there are none.

    Example:
        >>> recorded_lines("no-such-tokens")
        []

    Args:
        output: the prefix X, or one of its files.
    """
    counts = left_out_of(output)
    path = unused_path(output)
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"unused": {}}
    rest = {name: count for name, count in counts.items() if not name.startswith("not used: ")}
    return [*unused_lines(content["unused"]), *([f"left out   {left_out_text(rest)}"] if rest else [])]
