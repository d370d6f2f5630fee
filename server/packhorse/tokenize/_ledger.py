"""The rows that tokenizing left out: `X.skipped.jsonl` beside the output, a JSON object for each row and its reason.

Owns the file's form, and joining those of the parts. Leaves finding such rows to `_rows`.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TextIO

from packhorse.formats.left_out import skipped_path
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
