"""A prepared folder as the whole address of a dataset: where it is served, its name, and its tokens.

Owns finding a folder's tokens, and checking that they have not changed. Leaves serving the folder to the embedded
transport.
"""

import json
import os
from pathlib import Path
from typing import Any

from packhorse.client.connecting import Server, Target
from packhorse.client.options import Run
from packhorse.client.transport.requests import shortened
from packhorse.tokens import TokenSource, TokenSourceError
from packhorse.tokens.recorded import open_recorded, recorded_path

_MANIFEST = "manifest.json"
_MIXTURE_SUFFIX = ".mixture.toml"


def of_folder(target: Target | Server, dataset: str | Run | None, tokens: Any) -> tuple[Any, str | Run, Any]:
    """Returns a target, a dataset and tokens, of which a prepared folder may be all.

    Args:
        target: as in `PackedDataset`; with `dataset=None` the path of a prepared folder, or of a mixture's file, which
            is served in this process.
        dataset: as in `PackedDataset`; None for the folder's.
        tokens: as in `PackedDataset`; None for those that the folder was prepared from, or that the server sends.

    Raises:
        ValueError: something is left out that no folder says; names the argument and the way out.
        TokenSourceError: the tokens are not there any more, or others are there.
    """
    if dataset is not None:
        return target, dataset, tokens
    folder = Path(target) if isinstance(target, str | os.PathLike) else None
    if folder is not None and folder.name.endswith(_MIXTURE_SUFFIX) and folder.is_file():
        folder = folder.resolve()  # its components are served with their tokens
        return f"embedded:{folder.parent}", folder.name.removesuffix(_MIXTURE_SUFFIX), tokens
    if folder is None or not (folder / _MANIFEST).is_file():
        raise ValueError(
            f"{shortened(target)} is no prepared folder (it has no {_MANIFEST}), so dataset=None says nothing: give a "
            "folder that `packhorse prepare` wrote, the file of a mixture, or the dataset's name"
        )
    folder = folder.resolve()
    found = _tokens_of(folder) if tokens is None else tokens
    return f"embedded:{folder.parent}", folder.name, found


def _tokens_of(folder: Path) -> TokenSource:
    inputs = json.loads((folder / _MANIFEST).read_text(encoding="utf-8")).get("inputs") or {}
    record = inputs.get("tokens")
    if not isinstance(record, dict):
        raise ValueError(
            f"{folder.name} does not say where its tokens are, as only folders do that were prepared from tokens in "
            "one place on a disk: give tokens="
        )
    path = recorded_path(folder, record)
    if not os.path.exists(path):
        raise TokenSourceError(f"the tokens of {folder.name} are not at {path}: give tokens= where they are now")
    return open_recorded(path, record, inputs["rows"])
