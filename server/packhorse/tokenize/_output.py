"""Where the token files of a prefix `X` and the tokenizer beside them are.

Owns these names; leaves what is written there to `text` and `fine_tuning`.
"""

import os
from pathlib import Path

from packhorse.formats import megatron_paths
from packhorse.formats.atomic import refuse_url


def prefix_paths(output: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Returns the `.bin` and the `.idx` of the prefix that an output is.

    Raises:
        ValueError: it is a folder, or ends like one.
    """
    if not isinstance(output, str | os.PathLike):
        raise ValueError(f"output must be the path of the files to write, without a suffix, got {output!r:.60}")
    refuse_url(output, "--output")
    paths = megatron_paths(output)
    is_folder = os.path.isdir(output)
    if is_folder or paths[1].name == ".idx":
        folder = Path(output) if is_folder else paths[1].parent
        raise ValueError(f"--output {output} is a folder; name the files in it too, e.g. --output {folder / 'corpus'}")
    return paths


def saved_tokenizer_path(output: str | os.PathLike[str]) -> Path:
    """Returns where the tokenizer of token files `X.bin`, `X.idx` is kept."""
    return megatron_paths(output)[1].with_suffix(".tokenizer.json")


def is_saved(local: Path, saved: Path) -> bool:
    """Says whether a tokenizer that is used is the very file where it would be kept."""
    return saved.exists() and local.samefile(saved)
