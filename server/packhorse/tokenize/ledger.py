"""The files beside an output X that list what is not in its tokens.

Owns the form of two files: the ledger `X.skipped.jsonl` has a JSON object for each row that was left out, with the
reason, and `X.unused.json` counts the fields that the tokens of the other rows lack. Leaves finding such rows and
fields to `input/skipped`, `encoding/row_encoder` and `packhorse.sft`.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TextIO

from packhorse.formats.beside_tokens import skipped_path, unused_path
from packhorse.storage import AtomicFiles

Reason = Literal["bad", "empty", "undecodable", "no_targets", "too_long"]
"""Why a row is left out: it cannot be read or encoded, it holds nothing, it is not UTF-8, it has no token to train on,
or it does not fit the cutoff."""


def open_ledger(output: str | os.PathLike[str]) -> TextIO:
    """Opens the ledger of a part for writing."""
    return skipped_path(output).open("w", encoding="utf-8", newline="\n")


def write_entry(ledger: TextIO, row: str, reason: Reason, why: str) -> None:
    """Adds a row that was left out: where it is, the reason, and what is wrong with it."""
    ledger.write(json.dumps({"row": row, "reason": reason, "why": why}, ensure_ascii=False) + "\n")


def join_ledgers(output: str | os.PathLike[str], parts: Sequence[str | os.PathLike[str]]) -> Path | None:
    """Joins the ledgers of parts to the ledger of an output; if no row was left out, removes an old ledger.

    Args:
        output: the prefix of the output.
        parts: prefixes of the parts, in order.

    Returns:
        The path of the ledger; None if no row was left out.
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
    """Writes `X.unused.json`: the numbers of sequences and of trained turns without an end, and the unused fields.

    `unused` is as `Tally.unused` has it.
    """
    content = {"sequences": sequences, "open_turns": open_turns, "unused": unused}
    path = unused_path(output)
    with AtomicFiles([path], overwrite=True) as files:
        files.files[0].write(json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n")
