"""What of the rows is not in the tokens: the files beside the output that say so.

Owns the form of `X.skipped.jsonl`, a JSON object for each row that was left out and its reason, and of `X.unused.json`,
the fields of rows that are in. Leaves finding them to `input/skipped`, `_row_encoder` and `packhorse.sft`.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TextIO

from packhorse.formats.left_out import skipped_path, unused_path
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
