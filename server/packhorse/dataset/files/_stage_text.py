"""Changes of a mixture's text: a stage more, or some fewer; everything else stays as it was written, comments too.

Owns finding stages in the text; leaves what a text says to `mixture_file`.
"""

import re

from packhorse.dataset.files.mixture_file import MixtureError, MixtureFile, StageEntry, render_stage

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
