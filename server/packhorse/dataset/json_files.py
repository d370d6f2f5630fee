"""The JSON files beside the manifest, written and read.

Owns the form of counts.json and templates.json, and of inputs.jsonl and skipped.jsonl: the lists of files that were
read and of rows that were skipped, if they are too long for the manifest. A length in counts and templates is a room,
or the number of a class if the dataset has resources. The fields of these records are in `facts`, the manifest is in
`manifest`; whether counts and templates fit each other is checked in `load`.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from packhorse.dataset.facts import InputRecord, SkippedRow
from packhorse.packing import Template, canonical_templates

_Record = TypeVar("_Record", InputRecord, SkippedRow)


def render_counts(counts: Mapping[int, int]) -> bytes:
    """Returns the bytes of counts.json: length → count, by ascending length."""
    return _rendered({str(length): int(counts[length]) for length in sorted(counts)})


def parse_counts(data: bytes) -> Counter[int]:
    """Reads the bytes of counts.json; raises a ValueError if they are something else."""
    content = _parsed(data)
    if not isinstance(content, dict) or not all(_is_count(count) for count in content.values()):
        raise ValueError("not an object of length → count")
    counts = Counter({int(length): count for length, count in content.items()})
    if not all(_is_length(length) for length in counts):
        raise ValueError("not every length is in [1, 2^31)")
    return counts


def render_templates(templates: Mapping[Template, int]) -> bytes:
    """Returns the bytes of templates.json: a list of [[lengths], multiplicity] in canonical order."""
    return _rendered([[list(template), multiplicity] for template, multiplicity in canonical_templates(templates)])


def parse_templates(data: bytes) -> Counter[Template]:
    """Reads the bytes of templates.json; raises a ValueError if they are something else."""
    refusal = ValueError("not a list of [[lengths], multiplicity]")
    content = _parsed(data)
    if not isinstance(content, list):
        raise refusal
    templates: Counter[Template] = Counter()
    for entry in content:
        match entry:
            case [[*lengths], multiplicity] if all(map(_is_length, lengths)) and _is_count(multiplicity):
                templates[tuple(lengths)] += multiplicity
            case _:
                raise refusal
    return templates


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


def _rendered(content: object) -> bytes:
    return (json.dumps(content, separators=(",", ":")) + "\n").encode()


def _parsed(data: bytes) -> object:
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _is_length(value: object) -> bool:
    return type(value) is int and 0 < value < 2**31


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63
