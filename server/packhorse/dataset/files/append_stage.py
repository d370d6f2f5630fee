"""Changing the stages of a mixture's file: the future of a run changes, and nothing of its past.

Owns the order of reading, checking and replacing, and the text of a stage.
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
from packhorse.dataset.files.toml_files import text_of
from packhorse.dataset.load import PreparedDataset
from packhorse.storage import hold_lock, replace_bytes

_HEADER = re.compile(r"^[ \t]*\[\[[ \t]*stages[ \t]*\]\][^\n]*$", re.MULTILINE)
_ANY_HEADER = re.compile(r"^[ \t]*\[", re.MULTILINE)
_END = re.compile(r"^[ \t]*until_\w+[ \t]*=[^\n]*\n?", re.MULTILINE)


def append_stage(text: str, file: str, stage: StageEntry, from_position: int) -> str:
    r"""Returns a file's text with one more stage at its end.

    Example:
        >>> from decimal import Decimal
        >>> text = "[[stages]]\nweights = {web = 1}\n"
        >>> print(append_stage(text, "my.mixture.toml", StageEntry(weights={"web": 1, "code": Decimal("0.5")}), 900))
        [[stages]]
        until_bins = 900
        weights = {web = 1}
        <BLANKLINE>
        [[stages]]
        weights = {web = 1, code = 0.5}
        <BLANKLINE>

    Args:
        text: of the file.
        file: its name, for messages.
        stage: without `until`.
        from_position: of the run; where what is now the last stage ends.

    Raises:
        MixtureError: the text is no mixture, or its stages are written in another way than as [[stages]].
    """
    before = MixtureFile.parse(text, file)
    try:
        wanted = before.appended(stage, from_position)
    except ValueError as error:
        raise MixtureError(f"{file}: {error}") from None
    headers = list(_HEADER.finditer(text))
    if headers:
        at = headers[-1].end()
        edited = f"{text[:at]}\nuntil_bins = {from_position}{text[at:].rstrip()}\n\n{render_stage(stage)}"
        if _says(edited, file, wanted):
            return edited
    raise MixtureError(
        f"{file}: a stage is appended where stages are written as [[stages]] tables; write them so, or append by hand"
    )


def cut_stages(text: str, file: str, num_stages: int) -> str:
    r"""Returns a file's text with its first stages alone, of which the last goes on.

    Example:
        >>> text = "[[stages]]\nuntil_bins = 900\nweights = {web = 1}\n\n[[stages]]\nweights = {code = 1}\n"
        >>> print(cut_stages(text, "my.mixture.toml", 1))
        [[stages]]
        weights = {web = 1}
        <BLANKLINE>

    Args:
        text: of the file.
        file: its name, for messages.
        num_stages: how many stay, at least 1.

    Raises:
        MixtureError: the text is no mixture, or its stages are written in another way than as [[stages]], or something
            else in it speaks of a component that goes.
    """
    wanted = MixtureFile.parse(text, file).cut(num_stages)
    starts = [header.start() for header in _HEADER.finditer(text)]
    edited = text
    for start in reversed(starts[num_stages:]):
        following = _ANY_HEADER.search(edited, edited.index("\n", start) if "\n" in edited[start:] else len(edited))
        edited = edited[:start] + (edited[following.start() :] if following else "")
    if num_stages <= len(starts):
        last = starts[num_stages - 1]
        edited = edited[:last] + _END.sub("", edited[last:], count=1)
        edited = f"{edited.rstrip()}\n"
        if _says(edited, file, wanted):
            return edited
    raise MixtureError(
        f"{file}: stages are taken back where they are written as [[stages]] tables, and no other table names a "
        "component that goes with them; edit the file by hand"
    )


def _says(text: str, file: str, wanted: MixtureFile) -> bool:
    try:
        return MixtureFile.parse(text, file) == wanted
    except MixtureError:
        return False


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
    with hold_lock(path.parent):
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
            replace_bytes(path, edited.encode())
        return before, after


def _opened(name: str, text: str, file: str, dataset_of: Callable[[str], PreparedDataset]) -> MixtureDataset:
    content = MixtureFile.parse(text, file)
    return MixtureDataset(name, content, [dataset_of(component) for component in content.names])
