"""`as_token_source`: the source for what a user passes: a path, a URL, a dataset, or an object that is indexed by id.

Owns recognising these. Leaves objects that are indexed to `indexable`, and opening files to the source of each format.
"""

import glob
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from packhorse.formats.arrow.folders import SAVED_STATE, saved_splits
from packhorse.formats.arrow.folders import SUFFIXES as ARROW_SUFFIXES
from packhorse.formats.files import as_path, is_file, is_folder
from packhorse.formats.mds import INDEX
from packhorse.formats.object_store import find_objects, is_url, without_secrets
from packhorse.parameters import parameter
from packhorse.tokens.base import TokenSource, TokenSourceError
from packhorse.tokens.indexable import IndexableSource
from packhorse.tokens.mixture import MixtureSource
from packhorse.tokens.remote_token_files import RemoteSource
from packhorse.tokens.stored.store_cache import StoreCache
from packhorse.tokens.tables.arrow import ArrowSource
from packhorse.tokens.tables.arrow_tables import is_hf_dataset
from packhorse.tokens.tables.mds import MdsSource
from packhorse.tokens.tables.parquet import ParquetSource
from packhorse.tokens.tables.remote_arrow import RemoteArrowSource
from packhorse.tokens.token_files import token_file_source


class _TableOptions(TypedDict):
    """The options of `as_token_source` that the sources of tables take too."""

    column: str | None
    id_column: str | None
    store: StoreCache | None


def as_token_source(
    obj: Any,
    *,
    column: str | None = None,
    id_column: str | None = None,
    is_loss_mask: bool = False,
    store: StoreCache | None = None,
) -> TokenSource:
    """Returns the token source for a path, a URL, a dataset or another object.

    Example:
        >>> as_token_source("corpus.idx").read(1).tolist()
        [0, 1, 2]
        >>> as_token_source({70: [1, 2], 30: [3]}).read(70).tolist()
        [1, 2]

    Args:
        obj: a `TokenSource`, returned as it is;
            a path of a Megatron pair (`.idx`, `.bin` or their prefix), or of a flat file with `.boundaries` beside it;
            a folder that Hugging Face `datasets` saved, of MDS shards, or of Parquet or Arrow files;
            a `.parquet` or `.arrow` file, a glob pattern of such files, or a list of them;
            the URL of any of these in an object store, such as `s3://bucket/corpus.idx` or `s3://bucket/x/*.parquet`;
            a `datasets.Dataset`; a dict from the names of a mixture's components to any of these;
            else anything with `__getitem__(id)`.
        column: the column of tokens, if the data has several candidates; for other objects, the key of an item's
            tokens.
        id_column: the column of ids, if ids are not row numbers. With None, a loader later takes the column that the
            dataset's ids come from, if the data has it (`TokenSource.for_ids`).
        is_loss_mask: whether `obj` is a loss mask, so that True and False become 1 and 0.
        store: how URLs are read, and whether decoded columns are kept on the node's disk; None for the defaults.
            Mapped files do not use it.

    Raises:
        FileNotFoundError: a file is missing.
        ImportError: pyarrow, or fsspec's file system for a URL, is not installed.
        TokenSourceError: the path holds nothing readable or several formats, the column is ambiguous, or the object
            cannot be indexed.
        TokenStoreError: a store does not answer.
    """
    options = _TableOptions(column=column, id_column=id_column, store=store)
    if isinstance(obj, TokenSource):
        return _without_columns(obj, options)
    if is_hf_dataset(obj):
        return _mapped_arrow(obj, options)
    datasets = sys.modules.get("datasets")  # only a program that has imported it can pass one
    if datasets is not None and isinstance(obj, datasets.DatasetDict):
        raise TokenSourceError(f"a DatasetDict holds several datasets; pass one of them: {', '.join(map(repr, obj))}")
    if is_url(obj):
        return _of_url(obj, options)
    if isinstance(obj, str) and obj.startswith("file://"):
        return _of_file_url(obj, options)
    if isinstance(obj, str | os.PathLike):
        path = Path(obj)
        return _of_folder(path, options) if path.is_dir() else _of_files([path], obj, options)
    if isinstance(obj, list | tuple) and obj and all(is_url(item) for item in obj):
        return _of_urls(obj, obj, options)
    if isinstance(obj, list | tuple) and obj and all(isinstance(item, str | os.PathLike) for item in obj):
        named = [as_path(item) for item in obj]  # an item may be a file:// URL
        return _of_files(list(map(Path, named)), named, options)
    if isinstance(obj, Mapping) and obj and all(isinstance(name, str) for name in obj):
        return MixtureSource(
            {name: as_token_source(data, **options, is_loss_mask=is_loss_mask) for name, data in obj.items()}
        )
    if id_column is not None:
        raise TokenSourceError(
            f"{type(obj).__name__} is indexed by ids; leave " + parameter("id_column", id_column) + " out"
        )
    return IndexableSource(obj, key=column, takes_bool=is_loss_mask)


def _of_url(url: str, options: _TableOptions) -> TokenSource:
    """Chooses the source for one URL of a store: by how it ends, and otherwise by what the store has there."""
    name = without_secrets(url).rstrip("/").rpartition("/")[2]
    suffix = os.path.splitext(name)[1]
    if suffix in (".idx", ".bin", ".boundaries"):
        return _of_stored_tokens(url, options)
    if suffix in (".parquet", *ARROW_SUFFIXES):
        return _of_urls([url], url, options)
    if name == INDEX or is_file(f"{url.rstrip('/')}/{INDEX}"):
        return MdsSource(url, **options)
    if not is_folder(url):
        return _of_stored_tokens(url, options)
    if is_file(f"{url.rstrip('/')}/{SAVED_STATE}"):
        return RemoteArrowSource(url, **options)
    # In a folder only *.arrow are Arrow files, as for `arrow_objects`; .ipc and .feather are named one by one.
    found = {os.path.splitext(below)[1] for below in find_objects(url, "")} & {".parquet", ".arrow"}
    if len(found) == 1:
        return ParquetSource(url, **options) if found == {".parquet"} else RemoteArrowSource(url, **options)
    raise TokenSourceError(
        f"{without_secrets(url)} holds {'both Parquet and Arrow files' if found else 'no Parquet or Arrow files'}; "
        f"give a pattern, such as {without_secrets(url).rstrip('/')}/*.parquet"
    )


def _of_file_url(url: str, options: _TableOptions) -> TokenSource:
    """Chooses the source for a file:// URL: a table is read by its path, tokens in blocks, as from a store."""
    path = Path(as_path(url))
    is_table = path.suffix in (".parquet", *ARROW_SUFFIXES) or path.is_dir()
    return as_token_source(path, **options) if is_table else _of_stored_tokens(url, options)


def _of_stored_tokens(url: str, options: _TableOptions) -> TokenSource:
    """Returns the source of a Megatron pair or a flat file at a URL."""
    return _without_columns(RemoteSource.through(url, options["store"] or StoreCache()), options)


def _of_urls(urls: Sequence[str], data: Any, options: _TableOptions) -> TokenSource:
    """Chooses the source for several URLs, by how they end; `data` is the user's argument."""
    suffixes = {os.path.splitext(without_secrets(url))[1] for url in urls}
    if suffixes == {".parquet"}:
        return ParquetSource(data, **options)
    if suffixes <= set(ARROW_SUFFIXES):
        return RemoteArrowSource(data, **options)
    raise TokenSourceError(f"{without_secrets(urls[0])}: several URLs must all be .parquet or all be .arrow")


def _of_folder(folder: Path, options: _TableOptions) -> TokenSource:
    """Chooses the source for a folder, by the files in it."""
    if (folder / SAVED_STATE).is_file():
        return _mapped_arrow(folder, options)
    if splits := saved_splits(folder):
        raise TokenSourceError(f"{folder} holds several datasets; pass the folder of one: {', '.join(splits)}")
    if (folder / INDEX).is_file():
        return MdsSource(folder, **options)
    # In a folder only *.arrow are Arrow files, as for `arrow_files`; .ipc and .feather are named one by one.
    kinds = [suffix for suffix in (".parquet", ".arrow") if any(folder.rglob(f"*{suffix}"))]
    if len(kinds) == 1:
        return ParquetSource(folder, **options) if kinds == [".parquet"] else _mapped_arrow(folder, options)
    found = "both Parquet and Arrow files" if kinds else f"no {SAVED_STATE}, {INDEX}, Parquet or Arrow files"
    raise TokenSourceError(
        f"the folder {folder} holds {found}; pass a folder of one kind, a glob pattern such as "
        f"{folder / '*.parquet'}, or a TokenSource"
    )


def _of_files(paths: Sequence[Path], data: Any, options: _TableOptions) -> TokenSource:
    """Chooses the source for paths of files, or a pattern, by how they end; `data` is what the source opens."""
    suffixes = {path.suffix for path in paths}
    if suffixes == {".parquet"}:
        return ParquetSource(data, **options)
    if suffixes <= set(ARROW_SUFFIXES):
        return _mapped_arrow(data, options)
    if paths[0].name == INDEX:
        return MdsSource(paths[0], **options)
    if len(paths) > 1 or (glob.has_magic(str(paths[0])) and not paths[0].exists()):
        raise TokenSourceError(
            f"{_first_paths(paths)}: several files must all be .parquet or all be .arrow; pass tokens as lists of "
            "integers, not as texts"
        )
    return _without_columns(token_file_source(paths[0]), options)


def _mapped_arrow(data: Any, options: _TableOptions) -> TokenSource:
    """Returns the source of mapped Arrow data, which needs no `store`."""
    return ArrowSource(data, column=options["column"], id_column=options["id_column"])


def _first_paths(paths: Sequence[Path]) -> str:
    """Returns the first two paths for a message, shortened: a user may have given texts, which look like paths."""
    names = [str(path) if len(str(path)) <= 80 else f"{str(path)[:80]}…" for path in paths[:2]]
    return ", ".join(names) + (f" and {len(paths) - 2:,} more" if len(paths) > 2 else "")


def _without_columns(source: TokenSource, options: _TableOptions) -> TokenSource:
    """Returns a source that has no columns; a TokenSourceError if the user named one."""
    for name, value in (("column", options["column"]), ("id_column", options["id_column"])):
        if value is not None:
            raise TokenSourceError(f"{name} is {value!r}, but {type(source).__name__} has no columns; leave it out")
    return source
