"""From a tokenized sequence back to its row of fine-tuning, and the origin of each part of it.

Owns `X.rows.json` beside the output: the inputs and options with which rows became sequences. Leaves reading
rows to `input/rows`, and encoding to `encoding/row_encoder`.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from packhorse.formats.beside_tokens import skipped_path
from packhorse.sft import ExplainedSequence, load_chat_tokenizer
from packhorse.sft.tokenizer_loading import tokenizer_json_path
from packhorse.storage import AtomicFiles
from packhorse.tokenize._output import rows_path
from packhorse.tokenize.columns import AnyColumns, ChatColumns, PairColumns, PreferenceColumns
from packhorse.tokenize.encoding.row_forms import row_encoder
from packhorse.tokenize.input.parts import whole_files
from packhorse.tokenize.input.rows import row_files, rows_of
from packhorse.tokenize.input.skipped import Skipped
from packhorse.tokenize.input.text_check import TextCheck

_FORMS = {form.__name__: form for form in (ChatColumns, PairColumns, PreferenceColumns)}
"""The form in `X.rows.json` → its class."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TracedSequence:
    """A sequence, and the row from which it was made."""

    origin: str
    """The row: file, and line or number."""
    explained: ExplainedSequence
    """The sequence that the row becomes now, with the rows, tokenizer and template as they are today."""


def write_rows_file(
    output: str | os.PathLike[str],
    inputs: Sequence[str | os.PathLike[str]],
    columns: AnyColumns,
    tokenizer: Path,
    cutoff_len: int | None,
) -> None:
    """Writes `X.rows.json`; the arguments are those of `tokenize_fine_tuning`."""
    content = {
        "inputs": [os.fspath(path) for path in inputs],
        "form": type(columns).__name__,
        "columns": asdict(columns),
        "tokenizer": str(tokenizer),
        "cutoff_len": cutoff_len,
    }
    with AtomicFiles([rows_path(output)], overwrite=True) as files:
        files.files[0].write(json.dumps(content, indent=2, ensure_ascii=False, default=str).encode() + b"\n")


def trace_sequence(tokens: str | os.PathLike[str], number: int) -> TracedSequence | None:
    """Finds the row of a sequence, and encodes the row again, with the origin of each part.

    Rows before it are read, but not encoded.

    Example:
        >>> trace_sequence("no-such-tokens", 0) is None
        True

    Args:
        tokens: the prefix X, or one of its files.
        number: number of the sequence, from 0.

    Returns:
        The sequence; None if there is no `X.rows.json`, or the rows are fewer.

    Raises:
        FileNotFoundError: the rows, the tokenizer or the template is not there any more.
        ValueError: the row cannot be encoded any more.
    """
    path = rows_path(tokens)
    if not path.is_file():
        return None
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    options = content["columns"]  # JSON has no tuples and paths
    options["ignore"] = tuple(options["ignore"])
    if options["chat_template"] is not None:
        options["chat_template"] = Path(options["chat_template"])
    columns = _FORMS[content["form"]](**options)
    tokenizer = Path(content["tokenizer"])
    encoder = row_encoder(
        columns, load_chat_tokenizer(tokenizer), tokenizer_json_path(tokenizer), content["cutoff_len"]
    )
    sequences_per_row = 2 if isinstance(columns, PreferenceColumns) else 1
    row_number, number_in_row = divmod(number, sequences_per_row)
    files = whole_files(row_files(content["inputs"]).files)
    check = TextCheck(undecodable="skip", skipped=Skipped(), on_bad_row="skip")
    seen: set[str] = set()  # filled by `rows_of`, and not needed here
    rows = chain.from_iterable(rows_of(file.range, encoder.required, encoder.optional, check, seen) for file in files)
    left_out = _left_out(tokens)
    kept_rows = (row for row in rows if not left_out or str(row.origin) not in left_out)
    row = next((row for count, row in enumerate(kept_rows) if count == row_number), None)
    if row is None:
        return None
    return TracedSequence(origin=str(row.origin), explained=encoder.explain(*row.values)[number_in_row])


def _left_out(tokens: str | os.PathLike[str]) -> frozenset[str]:
    """Returns the origins of the rows that were left out of the tokens, from their ledger."""
    path = skipped_path(tokens)
    if not path.is_file():
        return frozenset()
    with path.open(encoding="utf-8") as lines:
        return frozenset(json.loads(line)["row"] for line in lines)
