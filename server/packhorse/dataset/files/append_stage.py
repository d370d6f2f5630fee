"""Changing the stages of a mixture's file: the future of a run changes, and nothing of its past.

Owns the order of reading, checking and replacing; leaves the text to `_stage_text`.
"""

from collections.abc import Callable
from pathlib import Path

from packhorse.dataset.files._stage_text import append_stage, cut_stages
from packhorse.dataset.files.mixture_file import (
    MIXTURE_SUFFIX,
    MOST_MIXTURE_BYTES,
    MixtureError,
    MixtureFile,
    StageEntry,
)
from packhorse.dataset.files.open_mixture import MixtureDataset
from packhorse.dataset.files.text_files import locked_folder, replace_text, text_of
from packhorse.dataset.load import PreparedDataset


def append_to_mixture(
    path: Path,
    stage: StageEntry | None,
    from_position: int,
    dataset_of: Callable[[str], PreparedDataset],
    *,
    replace: bool = False,
) -> tuple[MixtureDataset, MixtureDataset]:
    r"""Adds a stage to a mixture's file, which is replaced as a whole: a server reads the old text or the new one.

    Example:
        >>> from packhorse.dataset import StageEntry, open_prepared
        >>> path = Path("some.mixture.toml")
        >>> _ = path.write_text("epoch_bins = 8\n\n[[stages]]\nweights = {corpus = 1}\n")
        >>> stage, dataset_of = StageEntry(weights={"corpus": 2}), lambda name: open_prepared(f"datasets/{name}")
        >>> before, after = append_to_mixture(path, stage, 20, dataset_of)
        >>> [first for first, _ in before.chain], [first for first, _ in after.chain]
        ([0], [0, 20])
        >>> _, after = append_to_mixture(path, None, 20, dataset_of, replace=True)
        >>> [first for first, _ in after.chain]
        [0]

    Args:
        path: of the file.
        stage: the weights from there on; None adds none.
        from_position: of the run, epoch · num_bins + position; beyond where the last stage begins that stays.
        dataset_of: opens the dataset of a name.
        replace: takes back the stages that begin at `from_position` or beyond, first.

    Returns:
        The mixture as it was, and as it is now. They are the same up to `from_position`.

    Raises:
        MixtureError: the file, the stage or the position is not as it must be; the file stays as it was.
        OSError: it cannot be written.
    """
    with locked_folder(path.parent):
        name = path.name.removesuffix(MIXTURE_SUFFIX)
        text = text_of(path, MOST_MIXTURE_BYTES, MixtureError)
        before = _opened(name, text, path.name, dataset_of)
        firsts = [first for first, _ in before.chain]
        num_left = sum(first < max(from_position, 1) for first in firsts) if replace else len(firsts)
        last = firsts[num_left - 1]
        if stage is not None and from_position <= last:
            raise MixtureError(
                f"position {from_position} is not beyond {last}, where the last stage of {name} begins: choose a later "
                "position, or replace that stage, where nobody has come to it"
            )
        edited = text if num_left == len(firsts) else cut_stages(text, path.name, num_left)
        if stage is not None:
            edited = append_stage(edited, path.name, stage, from_position)
        after = _opened(name, edited, path.name, dataset_of)
        if edited != text:
            replace_text(path, edited)
        return before, after


def _opened(name: str, text: str, file: str, dataset_of: Callable[[str], PreparedDataset]) -> MixtureDataset:
    content = MixtureFile.parse(text, file)
    return MixtureDataset(name, content, [dataset_of(component) for component in content.names])
