"""Text and histograms as input: they are refused with the name of the command that takes them.

Owns recognising both, and the messages. Leaves the list of readers, which has them too, to `find`.
"""

import os
import shlex
from collections.abc import Sequence

from packhorse.formats.object_store import without_secrets
from packhorse.prepare.input._base import Opened, WholeFiles, first_bytes
from packhorse.prepare.input._columns import InputColumns

_LOOK_BYTES = 1 << 12
"""Bytes of a .json file in which its first character that is not a space is looked for."""


class TextRefusal(WholeFiles):
    """Refuses text: it has no lengths before it is tokenized, and a trainer needs the tokens too."""

    kind = "text"
    takes = "not read here, because tokens are needed to train from as well: `packhorse tokenize` first"
    suffixes = tuple(
        suffix + packed
        for suffix in (".jsonl", ".ndjson", ".json", ".txt", ".md", ".csv", ".tsv")
        for packed in ("", ".gz", ".zst")
        if (suffix, packed) != (".json", "")  # it may be a histogram: `HistogramRefusal` takes it
    )

    def open(self, paths: Sequence[str], columns: InputColumns) -> Opened:
        """Raises a ValueError that says what to do instead."""
        where = without_secrets(paths[0])
        name = shlex.quote(os.path.basename(where).partition(".")[0])
        if columns.length is not None:
            raise ValueError(
                f"{where} is text, which has no columns: write its rows as Parquet, for example by `duckdb -c "
                f"\"copy '{where}' to '{name}.parquet'\"`, or give lengths from Python, prepare(lengths=…)"
            )
        raise ValueError(
            f"{where} is text, whose lengths are known when it is tokenized: run `packhorse tokenize --input "
            f"{shlex.quote(where)} --output {name}`, then prepare {name}.idx"
        )


class HistogramRefusal(WholeFiles):
    """Refuses a histogram: it has lengths but no ids, and ids are what a server serves."""

    kind = "histogram"
    takes = "not read here, because it has no ids: `packhorse plan compare` plans it"
    suffixes = ("counts.json",)

    def recognises(self, path: str) -> bool:
        """Returns whether a path is counts.json, or a .json file that begins as JSON does; see `Reader`."""
        return super().recognises(path) or (
            path.endswith(".json") and first_bytes(path, _LOOK_BYTES).lstrip()[:1] in (b"{", b"[")
        )

    def open(self, paths: Sequence[str], columns: InputColumns) -> Opened:
        """Raises a ValueError that says what to do instead."""
        where = without_secrets(paths[0])
        raise ValueError(
            f"{where} is JSON: a histogram has no ids, and a prepared dataset serves ids. `packhorse plan compare "
            f"{shlex.quote(where)} --max-seq-len N` plans it; to serve it, prepare from the lengths. Rows of "
            "text are for `packhorse tokenize`"
        )
