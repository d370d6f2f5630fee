"""Adding a stage to a mixture's file, or removing the last stages.

Owns editing the file's text without touching what the user wrote elsewhere, and the order of locking, reading, checking
and replacing. Leaves the file's fields to `mixture_file`, and editing takedowns to `redacting`.
"""

import re
from collections.abc import Callable
from pathlib import Path

from packhorse.dataset.files.mixture_file import (
    MIXTURE_SUFFIX,
    MOST_MIXTURE_BYTES,
    MixtureError,
    MixtureFile,
    StageEntry,
    render_stage,
)
from packhorse.dataset.files.open_mixture import MixtureDataset
from packhorse.dataset.files.toml_files import array_header, text_of
from packhorse.dataset.load import PreparedDataset
from packhorse.parameters import message_of
from packhorse.storage import hold_lock, replace_bytes

_STAGE_HEADER = re.compile(array_header("stages") + r"[^\n]*$", re.MULTILINE)
_ANY_HEADER = re.compile(r"^[ \t]*\[", re.MULTILINE)
_UNTIL_LINE = re.compile(r"^[ \t]*until_\w+[ \t]*=[^\n]*\n?", re.MULTILINE)


def append_to_mixture(
    path: Path,
    stage: StageEntry | None,
    from_position: int,
    dataset_of: Callable[[str], PreparedDataset],
    *,
    replace: bool = False,
) -> tuple[MixtureDataset, MixtureDataset]:
    r"""Adds a stage to a mixture's file. The file is replaced in one step: servers read the old text or the new one.

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
        path: path of the file.
        stage: the new stage; None adds none.
        from_position: the position of the run at which the new stage begins, epoch · num_bins + position. It must be
            after the beginning of the last stage that stays.
        dataset_of: a function that opens the dataset of a component's name.
        replace: whether to remove the stages that begin at `from_position` or later first.

    Returns:
        The mixture as it was, and as it is now. They are the same up to `from_position`.

    Raises:
        MixtureError: the file, the stage or the position is wrong; the file stays as it was.
        OSError: it cannot be written.
    """
    with hold_lock(path.parent):
        name = path.name.removesuffix(MIXTURE_SUFFIX)
        text = text_of(path, MOST_MIXTURE_BYTES, MixtureError)
        before = _open_text(name, text, path.name, dataset_of)
        begins = [begin for begin, _ in before.chain]  # of the stages, as positions of the run
        num_kept = len(begins)
        if replace:  # the first stage begins at 0, and always stays
            num_kept = sum(begin < max(from_position, 1) for begin in begins)
        last_begin = begins[num_kept - 1]
        if stage is not None and from_position <= last_begin:
            raise MixtureError(
                f"position {from_position} is not after {last_begin}, where the last stage of {name} begins: choose a "
                "later position, or replace that stage if no run has reached it"
            )
        edited = text if num_kept == len(begins) else _without_later_stages(text, path.name, num_kept)
        if stage is not None:
            edited = _with_stage(edited, path.name, stage, from_position)
        after = _open_text(name, edited, path.name, dataset_of)
        if edited != text:
            replace_bytes(path, edited.encode())
        return before, after


def _open_text(name: str, text: str, file: str, dataset_of: Callable[[str], PreparedDataset]) -> MixtureDataset:
    """Opens the mixture that a file's text describes, which checks it as a server would."""
    content = MixtureFile.parse(text, file)
    return MixtureDataset(name, content, [dataset_of(component) for component in content.names])


def _with_stage(text: str, file: str, stage: StageEntry, from_position: int) -> str:
    """Returns a file's text with one more stage at its end; the stage before it ends at `from_position` of the run."""
    content = MixtureFile.parse(text, file)
    try:
        wanted = content.appended(stage, from_position)
    except ValueError as error:
        raise MixtureError(f"{file}: " + message_of(error)) from None
    headers = list(_STAGE_HEADER.finditer(text))
    if headers:
        end = headers[-1].end()
        edited = f"{text[:end]}\nuntil_bins = {from_position}{text[end:].rstrip()}\n\n{render_stage(stage)}"
        if _describes(edited, file, wanted):
            return edited
    raise MixtureError(
        f"{file}: stages must be [[stages]] tables for one to be appended; write them like that, or append by hand"
    )


def _without_later_stages(text: str, file: str, num_stages: int) -> str:
    """Returns a file's text with only its first stages, at least one; the last of them no longer ends."""
    wanted = MixtureFile.parse(text, file).cut(num_stages)
    starts = [header.start() for header in _STAGE_HEADER.finditer(text)]
    edited = text
    for start in reversed(starts[num_stages:]):
        _, _, below = edited[start:].partition("\n")
        next_header = _ANY_HEADER.search(below)
        edited = edited[:start] + (below[next_header.start() :] if next_header else "")
    if num_stages <= len(starts):
        last = starts[num_stages - 1]
        edited = edited[:last] + _UNTIL_LINE.sub("", edited[last:], count=1)
        edited = f"{edited.rstrip()}\n"
        if _describes(edited, file, wanted):
            return edited
    raise MixtureError(
        f"{file}: stages can be removed only if they are [[stages]] tables and no other table names their "
        "components; edit the file by hand"
    )


def _describes(text: str, file: str, wanted: MixtureFile) -> bool:
    """Returns whether an edited text has exactly the wanted content; False if it is no mixture."""
    try:
        return MixtureFile.parse(text, file) == wanted
    except MixtureError:
        return False
