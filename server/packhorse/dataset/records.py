"""Lists that are too long for the manifest: files that were read, rows that were skipped.

Owns writing and reading inputs.jsonl and skipped.jsonl, one JSON object on a line. The records' fields are in
`manifest`, the files' names in `layout`.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from packhorse.dataset.facts import InputRecord, SkippedRow

_Record = TypeVar("_Record", InputRecord, SkippedRow)


def write_records(path: Path, records: Iterable[InputRecord | SkippedRow]) -> None:
    """Writes a file of JSON lines, one for each record.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_records(Path(folder, "x.jsonl"), [SkippedRow(file="a.parquet", row=7, reason="the id is null")])
        ...     print(Path(folder, "x.jsonl").read_text(), end="")
        {"file": "a.parquet", "row": 7, "reason": "the id is null"}
    """
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(asdict(record)) + "\n" for record in records)


def read_records(path: Path, kind: type[_Record]) -> Iterator[_Record]:
    """Yields the records of a file that `write_records` wrote.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_records(Path(folder, "x.jsonl"), [SkippedRow(file="a.parquet", row=7, reason="the id is null")])
        ...     [record.row for record in read_records(Path(folder, "x.jsonl"), SkippedRow)]
        [7]
    """
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield kind(**json.loads(line))
