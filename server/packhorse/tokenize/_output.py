"""The output of tokenizing: the paths that a prefix names, and removing files of an earlier output.

The folder of unfinished work beside the output is in `_work`, and the lists of rows left out are in `ledger`.
"""

import os
from pathlib import Path

from packhorse.formats import megatron_paths
from packhorse.formats.beside_tokens import keys_path, unused_path
from packhorse.formats.megatron import masked_paths
from packhorse.parameters import parameter
from packhorse.storage import refuse_url
from packhorse.tokenize.encoding.tokenizers import settings_path


def checked_idx_path(output: str | os.PathLike[str]) -> Path:
    """Returns the path `X.idx` of a prefix X; a ValueError if the prefix is a folder, or ends in a slash."""
    if not isinstance(output, str | os.PathLike):
        raise ValueError(
            parameter("output") + f" must be the path of the files to write, without a suffix, got {output!r:.60}"
        )
    refuse_url(output, "output")
    idx_path = megatron_paths(output).idx_path
    is_folder = os.path.isdir(output)
    if is_folder or idx_path.name == ".idx":
        folder = Path(output) if is_folder else idx_path.parent
        raise ValueError(
            parameter("output") + f" {output} is a folder; name the files in it too, e.g. {folder / 'corpus'}"
        )
    return idx_path


def saved_tokenizer_path(output: str | os.PathLike[str]) -> Path:
    """Returns the path of the tokenizer beside token files `X.bin`, `X.idx`."""
    return megatron_paths(output).idx_path.with_suffix(".tokenizer.json")


def rows_path(output: str | os.PathLike[str]) -> Path:
    """Returns the path of `X.rows.json` beside token files `X.bin`, `X.idx`."""
    return megatron_paths(output).idx_path.with_suffix(".rows.json")


def tokenizer_outputs(output: str | os.PathLike[str], tokenizer: Path | None) -> list[Path]:
    """Returns the files in which the tokenizer is saved beside an output; none if the tokenizer to use is this file.

    `tokenizer` is the file of the tokenizer to use; None if one is trained.
    """
    saved = saved_tokenizer_path(output)
    is_in_place = tokenizer is not None and saved.exists() and tokenizer.samefile(saved)
    return [] if is_in_place else [saved, settings_path(saved)]


def remove_stale(output: str | os.PathLike[str], *, keeps_mask: bool = False, keeps_keys: bool = False) -> None:
    """Removes files that an earlier output of the same prefix left and that the new output lacks.

    Without `keeps_keys` that is the file of keys. Without `keeps_mask` it is the loss mask, with `X.unused.json` and
    `X.rows.json`. The caller does this after the new files have appeared. Until then, an old mask beside new tokens is
    refused, because their lengths differ; but old tokens that lost their mask would be trained on as a whole.
    """
    mask_bin, mask_idx, *_ = masked_paths(output)
    mask_files = [] if keeps_mask else [mask_idx, mask_bin, rows_path(output), unused_path(output)]
    key_files = [] if keeps_keys else [keys_path(output)]
    for path in mask_files + key_files:
        path.unlink(missing_ok=True)
