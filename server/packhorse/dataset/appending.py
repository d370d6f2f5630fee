"""Appending a stage to a mixture's file: the future of a run changes, and nothing of its past.

Owns the order of reading, checking and replacing; leaves the text to `mixture_file`.
"""

from collections.abc import Callable
from pathlib import Path

from packhorse.dataset.load import PreparedDataset
from packhorse.dataset.mixture import MixtureDataset
from packhorse.dataset.mixture_file import (
    MIXTURE_SUFFIX,
    MOST_MIXTURE_BYTES,
    MixtureError,
    MixtureFile,
    StageEntry,
    append_stage,
)
from packhorse.dataset.text_files import locked_folder, replace_text, text_of


def append_to_mixture(
    path: Path, stage: StageEntry, from_position: int, dataset_of: Callable[[str], PreparedDataset]
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

    Args:
        path: of the file.
        stage: the weights from there on.
        from_position: of the run, epoch · num_bins + position; beyond where the last stage begins.
        dataset_of: opens the dataset of a name.

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
        last = before.chain[-1][0]
        if from_position <= last:
            raise MixtureError(
                f"position {from_position} is not beyond {last}, where the last stage of {name} begins: stages are "
                "only appended; choose a later position"
            )
        edited = append_stage(text, path.name, stage, from_position)
        after = _opened(name, edited, path.name, dataset_of)
        replace_text(path, edited)
        return before, after


def _opened(name: str, text: str, file: str, dataset_of: Callable[[str], PreparedDataset]) -> MixtureDataset:
    content = MixtureFile.parse(text, file)
    return MixtureDataset(name, content, [dataset_of(component) for component in content.names])
