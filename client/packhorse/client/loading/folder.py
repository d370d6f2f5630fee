"""A prepared folder, or a mixture's file, as the only argument: target, dataset and tokens follow from its path.

Owns finding the folder's tokens. Leaves checking that these have not changed to `packhorse.tokens.recorded`, and
serving the folder to `transport/embedded`.
"""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from packhorse.client.connecting import Server, Target
from packhorse.client.options import Run
from packhorse.tokens import TokenSource, TokenSourceError
from packhorse.tokens.recorded import open_recorded, recorded_path
from packhorse.topology.checks import quoted

_MANIFEST = "manifest.json"
_MIXTURE_SUFFIX = ".mixture.toml"


class DataArguments(NamedTuple):
    """The three arguments by which a dataset finds its bins and tokens."""

    target: Target | Server
    """The server, or the folder that is served in this process."""
    dataset: str | Run
    """The dataset's name there, or a Run of it."""
    tokens: Any
    """Anything that `as_token_source` accepts; None for the tokens that the server sends."""


def resolve_folder(target: Target | Server, dataset: str | Run | None, tokens: Any) -> DataArguments:
    """Returns the arguments as they are or, without a dataset, as a prepared folder's path determines them.

    Args:
        target: as in `PackedDataset`; with `dataset=None` the path of a prepared folder, or of a mixture's file, which
            is served in this process.
        dataset: as in `PackedDataset`; None for the folder's.
        tokens: as in `PackedDataset`; None for those that the folder was prepared from, or that the server sends.

    Raises:
        ValueError: the dataset is left out and the target is no such path, or the folder does not record its tokens.
        TokenSourceError: the tokens are not there any more, or others are there.
    """
    if dataset is not None:
        return DataArguments(target, dataset, tokens)
    folder = Path(target) if isinstance(target, str | os.PathLike) else None
    if folder is not None and folder.name.endswith(_MIXTURE_SUFFIX) and folder.is_file():
        folder = folder.resolve()
        # Without `tokens`, the components are served with their own.
        return DataArguments(f"embedded:{folder.parent}", folder.name.removesuffix(_MIXTURE_SUFFIX), tokens)
    if folder is None or not (folder / _MANIFEST).is_file():
        raise ValueError(
            f"{quoted(target)} is no prepared folder (it has no {_MANIFEST}), so dataset=None says nothing: give a "
            "folder that `packhorse prepare` wrote, the file of a mixture, or the dataset's name"
        )
    folder = folder.resolve()  # "." has a name and a parent only so
    tokens = _tokens_of(folder) if tokens is None else tokens
    return DataArguments(f"embedded:{folder.parent}", folder.name, tokens)


def _tokens_of(folder: Path) -> TokenSource:
    """Returns the tokens that a folder was prepared from, as its manifest records them."""
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
    return open_recorded(path, record, num_sequences=inputs["rows"])
