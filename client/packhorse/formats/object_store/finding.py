"""`find_objects`: the objects that one URL names, as `files.find_files` finds files.

Leaves asking the store to `store`.
"""

import glob
import re
from collections.abc import Iterable

from packhorse.formats.object_store.store import Store, StoreOptions, are_of_folder
from packhorse.formats.object_store.urls import without_secrets


def find_objects(url: str, suffix: str) -> list[str]:
    """Finds the objects that one URL names, as `files.find_files` finds files.

    Args:
        url: an object, a folder of objects with the suffix (at any depth), or a glob pattern.
        suffix: suffix of the objects to take from a folder, with its dot.

    Returns:
        At least one URL; several are sorted as strings.

    Raises:
        FileNotFoundError: nothing is there.
        ImportError, PermissionError, TokenStoreError, ValueError: see `Store.request`.
    """
    store, shown = Store(url), without_secrets(url)
    facts = store.look()
    if facts is not None and not are_of_folder(facts):
        return [url]
    if facts is not None:  # a folder
        found = [
            path
            for path in store.request("list", lambda file_system, folder: file_system.find(folder))
            if path.endswith(suffix)
        ]
        if not found:
            raise FileNotFoundError(f"the folder {shown} and its subfolders hold no *{suffix} object")
        return _urls(url, store.options, found)
    if not glob.has_magic(url):
        raise FileNotFoundError(f"{shown} does not exist: the store has no object there, or below")
    matches = store.request("list", lambda file_system, pattern: file_system.glob(pattern, detail=True))
    objects = [path for path, of_path in matches.items() if not are_of_folder(of_path)]
    if not objects:
        raise FileNotFoundError(f"no object matches {shown}")
    return _urls(url, store.options, objects)


def _urls(url: str, options: StoreOptions, paths: Iterable[str]) -> list[str]:
    """Returns paths of a file system as sorted URLs; `url` is the folder or the pattern that found them."""
    # The root is the folder itself; for a pattern, it is the longest folder without "*", "?" and "[".
    plain = re.split(r"[*?\[]", url, maxsplit=1)[0]
    root = (url if plain == url else plain.rpartition("/")[0]).rstrip("/")
    base = Store(root, options).path.rstrip("/")
    return sorted(f"{root}/{path[len(base) :].lstrip('/')}" for path in paths)
