"""A prepared folder as the whole address of a dataset: where it is served, its name, and its tokens.

Owns reading where a folder's tokens are, and whether they still are those. Leaves serving it to the embedded transport.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.client.connecting import Server, Target
from packhorse.client.options import Run
from packhorse.client.transport.requests import shortened
from packhorse.tokens import TokenSource, TokenSourceError, as_token_source
from packhorse.wire import rows_of_fingerprint, tokens_fingerprint

_MANIFEST = "manifest.json"


def of_folder(target: Target | Server, dataset: str | Run | None, tokens: Any) -> tuple[Any, str | Run, Any]:
    """Returns a target, a dataset and tokens, of which a prepared folder may be all.

    Args:
        target: as in `PackedDataset`; with `dataset=None` the path of a prepared folder, which is served in this
            process.
        dataset: as in `PackedDataset`; None for the folder's.
        tokens: as in `PackedDataset`; None for those that the folder was prepared from.

    Raises:
        ValueError: something is left out that no folder says; names the argument and the way out.
        TokenSourceError: the tokens are not there any more, or others are there.
    """
    if dataset is not None:
        if tokens is None:
            raise ValueError(
                "tokens=None: only a prepared folder says where its tokens are, as in "
                "create_packed_dataloader('datasets/corpus', batch_size=8); give the token file"
            )
        return target, dataset, tokens
    folder = Path(target) if isinstance(target, str | os.PathLike) else None
    if folder is None or not (folder / _MANIFEST).is_file():
        raise ValueError(
            f"{shortened(target)} is no prepared folder (it has no {_MANIFEST}), so dataset=None says nothing: give a "
            "folder that `packhorse prepare` wrote, or the dataset's name"
        )
    folder = folder.resolve()
    found = _tokens_of(folder) if tokens is None else tokens
    return f"embedded:{folder.parent}", folder.name, found


def _tokens_of(folder: Path) -> TokenSource:
    inputs = json.loads((folder / _MANIFEST).read_text(encoding="utf-8")).get("inputs") or {}
    record = inputs.get("tokens")
    if not isinstance(record, dict):
        raise ValueError(
            f"{folder.name} does not say where its tokens are, as only folders do that were prepared from one Megatron "
            "or flat file: give tokens="
        )
    path = Path(os.path.normpath(folder / record["path"]))
    if not path.is_file():
        raise TokenSourceError(f"the tokens of {folder.name} are not at {path}: give tokens= where they are now")
    source = as_token_source(str(path))
    check_tokens(source, record["fingerprint"], inputs["rows"])
    return source


def check_tokens(source: TokenSource, fingerprint: str, num_sequences: int) -> None:
    """Refuses other tokens than those that a dataset was prepared from, by a fingerprint of 64 sequences.

    Args:
        source: the tokens; it may hold more sequences, as a file does that has grown.
        fingerprint: of the first `num_sequences`, as `packhorse.wire.tokens_fingerprint` makes it.
        num_sequences: at least 1.

    Raises:
        TokenSourceError: they are others, or fewer.
    """
    rows = rows_of_fingerprint(num_sequences)
    lengths = source.lengths(rows)
    gather = source.gather_from(rows, lengths)  # finds all of them at once
    number_of = {row: number for number, row in enumerate(rows.tolist())}

    def read(row: int) -> NDArray[np.int64]:
        number = number_of[row]
        tokens = np.empty(int(lengths[number]), dtype=np.int64)
        gather(number, number + 1, tokens, np.zeros(1, dtype=np.int64))
        return tokens

    if tokens_fingerprint(read, num_sequences) != fingerprint:
        raise TokenSourceError(
            "other tokens than those that the dataset was prepared from (made again, with another tokenizer?): "
            f"{source}; prepare it again, or give tokens= with the right ones"
        )
