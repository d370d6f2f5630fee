"""What of the rows is not in the tokens: `X.unused.json` beside the output, field by field.

Owns the file. Leaves finding such fields to `columns` and `packhorse.sft`.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packhorse.formats import megatron_paths
from packhorse.storage import AtomicFiles
from packhorse.tokenize._work import Tally


def unused_path(output: str | os.PathLike[str]) -> Path:
    """Returns the path of the file beside token files `X.bin`, `X.idx`."""
    return megatron_paths(output)[1].with_suffix(".unused.json")


def write_unused(output: str | os.PathLike[str], tally: Tally) -> None:
    """Writes what was not used, and how many trained turns have no end; replaces an earlier file."""
    content = {"sequences": tally.sequences, "open_turns": tally.open_turns, "unused": tally.unused}
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
    """Returns what `X.unused.json` beside token files says, for people; nothing if there is no such file.

    Example:
        >>> recorded_lines("no-such-tokens")
        []

    Args:
        output: the prefix X, or one of its files.
    """
    path = unused_path(output)
    if not path.is_file():
        return []
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    ends = [f"no end     {content['open_turns']:,} trained turns have no token that ends them"]
    return [*unused_lines(content["unused"]), *(ends if content["open_turns"] else [])]
