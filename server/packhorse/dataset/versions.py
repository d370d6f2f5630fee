"""Versions of a growing dataset: the folder itself is the newest, and its subfolder `versions` holds the earlier ones.

Owns listing, linking and removing versions; leaves making one to `prepare`. Each version is a complete prepared folder,
so whatever reads a prepared folder reads an earlier version too.
"""

import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from packhorse.dataset.errors import PreparedDatasetError, short_path
from packhorse.dataset.layout import FILES, MANIFEST, TOKENS, VERSIONS
from packhorse.dataset.load import check_folder
from packhorse.dataset.manifest import MOST_MANIFEST_BYTES, Manifest
from packhorse.dataset.output.locked import locked
from packhorse.dataset.plain_files import read_file
from packhorse.jobs import held_signals


@dataclass(frozen=True, kw_only=True)
class Version:
    """One version of a dataset."""

    path: Path
    """The version's prepared folder."""
    manifest: Manifest
    """The version's manifest."""
    is_current: bool
    """Whether it is the newest version, whose folder is the dataset's folder."""

    @property
    def number(self) -> int:
        """The version's number, counted from 1."""
        return self.manifest.version


def versions_of(folder: Path | str) -> list[Version]:
    """Returns all versions of a dataset, the newest first.

    Example:
        >>> [(version.number, version.is_current) for version in versions_of("datasets/corpus")]
        [(1, True)]

    Args:
        folder: the prepared folder.

    Raises:
        PreparedDatasetError: the manifest of the dataset, or of an earlier version, cannot be read.
    """
    folder = Path(folder)
    current = Version(path=folder, manifest=_manifest_of(folder), is_current=True)
    earlier = [Version(path=path, manifest=_manifest_of(path), is_current=False) for path in _earlier_folders(folder)]
    return [current, *sorted(earlier, key=lambda version: -version.number)]


def find_version(folder: Path | str, digest: str) -> Path | None:
    """Returns the folder of the earlier version with a digest; None if there is no such version.

    Example:
        >>> find_version("datasets/corpus", "of another") is None
        True

    Args:
        folder: the prepared folder.
        digest: the version's digest.
    """
    for path in _earlier_folders(Path(folder)):
        # A version that is damaged, or just being removed, is passed over.
        with suppress(PreparedDatasetError, OSError):
            if _manifest_of(path).digest == digest:
                return path
    return None


def link_versions(old: Path, new: Path) -> None:
    """Puts a dataset, and its earlier versions, into the subfolder `versions` of the folder that will replace it.

    Files are hard-linked if the file system can, and copied if not. A linked file takes no further space, and a process
    that has the old folder open goes on reading.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as new:
        ...     link_versions(Path("datasets/corpus"), Path(new))
        ...     sorted(path.name for path in Path(new, "versions", "1").iterdir())
        ['counts.json', 'manifest.json', 'pools.npy', 'templates.json']

    Args:
        old: the prepared folder.
        new: the folder being written.
    """
    for version in versions_of(old):
        folder = new / VERSIONS / str(version.number)
        folder.mkdir(parents=True)
        for name in FILES:
            if (version.path / name).exists():
                _link(version.path / name, folder / name)
        if (version.path / TOKENS).is_dir():
            link_tokens(version.path / TOKENS, folder)


def link_tokens(tokens: Path, folder: Path) -> None:
    """Puts token files into a prepared folder that is being written; they are linked, or copied, as in `link_versions`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as tokens, tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(tokens, "corpus.idx").write_bytes(b"")
        ...     link_tokens(Path(tokens), Path(folder))
        ...     [str(path.relative_to(folder)) for path in Path(folder).rglob("*.idx")]
        ['tokens/corpus.idx']

    Args:
        tokens: the folder of the token files.
        folder: the prepared folder, in which the subfolder `tokens` is created.
    """
    (folder / TOKENS).mkdir()
    for path in tokens.iterdir():
        if path.is_file():
            _link(path, folder / TOKENS / path.name)


def prune_version(folder: Path | str, number: int) -> None:
    """Removes an earlier version of a dataset, never the current one.

    Example:
        >>> try:
        ...     prune_version("datasets/corpus", 1)
        ... except ValueError as error:
        ...     print(error)
        version 1 of datasets/corpus is the current one, which stays; it has no earlier ones

    Args:
        folder: the prepared folder.
        number: the version's `number`.

    Raises:
        ValueError: there is no such version, or it is the current one.
        BlockingIOError: something is being prepared there.
        PreparedDatasetError: see `versions_of`.
    """
    with locked(Path(folder)) as work:
        versions = versions_of(folder)
        earlier = {version.number: version for version in versions if not version.is_current}
        if number not in earlier:
            have = f"earlier ones are {', '.join(map(str, earlier))}" if earlier else "it has no earlier ones"
            what = "is the current one, which stays" if number == versions[0].number else "is not there"
            raise ValueError(f"version {number} of {folder} {what}; {have}")
        path = earlier[number].path
        with held_signals():
            _remove(path, work / "removed")
            if len(earlier) == 1:  # it was the last one, so the folder `versions` is empty now
                path.parent.rmdir()


def _remove(folder: Path, hidden: Path) -> None:
    """Removes a folder by renaming it to `hidden` first, so that no reader finds half of it."""
    shutil.rmtree(hidden, ignore_errors=True)  # what a crash left there
    folder.rename(hidden)
    shutil.rmtree(hidden)


def _earlier_folders(folder: Path) -> list[Path]:
    """Returns the folders of a dataset's earlier versions, in any order."""
    versions = folder / VERSIONS
    return [path for path in versions.iterdir() if path.is_dir()] if versions.is_dir() else []


def _manifest_of(folder: Path) -> Manifest:
    check_folder(folder)
    return Manifest.parse(read_file(folder / MANIFEST, MOST_MANIFEST_BYTES), short_path(folder / MANIFEST))


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copy2(source, target)
