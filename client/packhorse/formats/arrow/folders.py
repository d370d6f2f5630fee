"""Which Arrow files a path names, in the order that numbers their rows; also in folders that `datasets` saved.

Leaves opening the files to `arrow.files`.
"""

import json
import os
from pathlib import Path

from packhorse.formats.files import find_files, is_file, open_binary
from packhorse.formats.object_store import find_objects, without_secrets

SUFFIXES = (".arrow", ".ipc", ".feather")
"""How names of Arrow files end."""
SAVED_STATE = "state.json"
"""Name of a file that `Dataset.save_to_disk` writes beside its Arrow files; it lists them."""
SAVED_SPLITS = "dataset_dict.json"
"""Name of a file that `DatasetDict.save_to_disk` writes beside a folder for each split."""


def arrow_files(source: str | os.PathLike[str]) -> list[Path]:
    """Finds the Arrow files that one path names, in the order that numbers their rows.

    Args:
        source: an Arrow file, a folder of `*.arrow` at any depth, a glob pattern, or a folder that
            `Dataset.save_to_disk` wrote.

    Returns:
        At least one path.

    Raises:
        FileNotFoundError: nothing is there.
        ValueError: a saved dataset names no files, or an old release of `datasets` saved it with rows selected.
    """
    folder = Path(source)
    if not (folder / SAVED_STATE).is_file():
        return find_files(source, ".arrow")
    try:
        state = (folder / SAVED_STATE).read_text(encoding="utf-8")
    except ValueError as error:  # the bytes are no UTF-8
        raise ValueError(f"{folder / SAVED_STATE} is not what `datasets` writes: {error!r}") from None
    return [folder / name for name in _saved_names(state, str(folder))]


def arrow_objects(url: str) -> list[str]:
    """Finds the Arrow files that one URL names; see `arrow_files`."""
    state_url = f"{url.rstrip('/')}/{SAVED_STATE}"
    # The URL of a single file needs no question to the store about a saved dataset.
    if without_secrets(url).endswith(SUFFIXES) or not is_file(state_url):
        return find_objects(url, ".arrow")
    with open_binary(state_url) as file:
        names = _saved_names(file.read().decode(), without_secrets(url))
    return [f"{url.rstrip('/')}/{name}" for name in names]


def saved_splits(folder: Path) -> list[str]:
    """Returns the splits of a folder that `DatasetDict.save_to_disk` wrote, sorted; [] for other folders."""
    if not (folder / SAVED_SPLITS).is_file():
        return []
    return sorted(state.parent.name for state in folder.glob(f"*/{SAVED_STATE}"))


def _saved_names(text: str, folder: str) -> list[str]:
    """Returns the names of the Arrow files that a saved dataset's state lists; `text` is the state's JSON."""
    path = f"{folder}/{SAVED_STATE}"
    try:
        state = json.loads(text)
        is_selected = bool(state.get("_indices_data_files") or state.get("_indices_files"))
        names = [str(entry["filename"]) for entry in state.get("_data_files") or []]
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not what `datasets` writes: {error!r}") from None
    if is_selected:
        raise ValueError(f"{folder} was saved with rows selected by an old `datasets`; save it with a newer one")
    if not names:
        raise ValueError(f"{path} names no Arrow file, so the dataset is empty or not whole")
    return names
