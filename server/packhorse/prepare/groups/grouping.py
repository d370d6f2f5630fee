"""`Grouping`: the rule by which a user's rows form groups, checked.

Leaves reading rows as whole groups to `_whole_groups`, and counting groups and writing their tables to `gathering`.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.formats.file_stamp import FileStamp
from packhorse.formats.files import as_path
from packhorse.formats.megatron import MegatronTokens, megatron_paths
from packhorse.formats.object_store import without_secrets
from packhorse.parameters import parameter
from packhorse.prepare.input import InputFile, load_npy
from packhorse.topology import checked_integer

INPUT = "input"
"""The value of `share_prefixes` that stands for the input's own tokens."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Grouping:
    """The rule by which rows form groups. Give one of `column`, `size` and `numbers`.

    A group's sequences always share a bin, in their order. A group that does not fit a bin is refused, or left out as a
    whole if over_length is "drop"; nothing cuts a group. Memory holds 8 bytes for each group and, if ids do not ascend,
    17 for each sequence.

    Raises:
        ValueError: none or several are given, or one is invalid.
    """

    column: str | None = None
    """The integer column of group numbers, from 0. Rows with equal numbers are a group, and must follow each other."""
    size: int | None = None
    """Rows in a group, which are consecutive and counted from the first row: 2 for pairs."""
    numbers: Any = None
    """The group number of each row, for token files, which have no columns: the path or URL of a .npy file. For lengths
    in memory: an array.
    """
    share_prefixes: Any = None
    """Tokens of the sequences: "input" for those of the input, the path of a Megatron file, or in memory anything that
    gives a row of tokens for an id. A beginning that sequences of a group share then takes room once, and trainers need
    `shared_prefix="tree"`. If None, each sequence takes the room of all its tokens.
    """
    ids: NDArray[np.integer] | None = field(init=False, default=None)
    """The group number of each row, from `numbers`; a file is mapped: integers [rows]."""
    file: InputFile | None = field(init=False, default=None)
    """The file of `numbers`; None for an array."""

    def __post_init__(self) -> None:
        """Checks the fields, and sets `ids` and `file` from `numbers`."""
        rules = {"group_column": self.column, "group_size": self.size, "groups": self.numbers}
        names = [name for name, value in rules.items() if value is not None]
        if len(names) != 1:
            subject = f"{' and '.join(names)} both say" if names else "nothing says"
            raise ValueError(f"{subject} which rows are a group: give one of {', '.join(rules)}")
        if not isinstance(self.column, str | None):
            raise ValueError(parameter("group_column") + f" must be a column's name, got {self.column!r:.60}")
        if self.size is not None:
            checked_integer("group_size", self.size, 1)
        if self.numbers is None:
            return
        path = as_path(self.numbers) if isinstance(self.numbers, str | os.PathLike) else None
        stamp = FileStamp.of(path) if path else None  # before the file is read, so that a later change is noticed
        ids = load_npy(path) if path else np.asarray(self.numbers)
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            where = without_secrets(path) if path else "groups"
            raise ValueError(
                f"{where} must be one integer for each row, got {ids.dtype} of shape {list(ids.shape)}: number them"
            )
        object.__setattr__(self, "ids", ids)  # the class is frozen
        if path and stamp:
            object.__setattr__(self, "file", InputFile(path=path, stamp=stamp, num_rows=len(ids)))

    def with_tokens_of(self, sources: Sequence[str]) -> "Grouping":
        """Returns the grouping with the input's path as `share_prefixes`, if that is "input".

        Args:
            sources: paths of the input; empty for lengths in memory.

        Raises:
            ValueError: `share_prefixes` is "input", and there is not exactly one source.
        """
        is_input = isinstance(self.share_prefixes, str) and self.share_prefixes == INPUT  # an array cannot be compared
        if not is_input:
            return self
        if len(sources) != 1:
            raise ValueError(
                parameter("share_prefixes", INPUT)
                + f" needs one Megatron file as input, and there are {len(sources)}: name the file of all tokens"
            )
        return replace(self, share_prefixes=sources[0])

    def tokens(self) -> Callable[[int], NDArray[np.integer]] | None:
        """Opens `share_prefixes`, and returns a function from an id to its tokens; None if prefixes are not shared."""
        tokens = self.share_prefixes
        if tokens is None:
            return None
        if not isinstance(tokens, str | os.PathLike):
            return lambda sequence_id: np.asarray(tokens[sequence_id])
        return MegatronTokens(tokens).read

    def check_rows(self, num_rows: int) -> None:
        """Refuses an input whose number of rows does not fit the groups; raises a ValueError."""
        if self.ids is not None and len(self.ids) != num_rows:
            raise ValueError(
                parameter("groups") + f" has {len(self.ids):,} entries for {num_rows:,} rows: give one for each row"
            )
        if self.size is not None and num_rows % self.size:
            raise ValueError(
                f"{num_rows:,} rows are not a multiple of "
                + parameter("group_size")
                + f" {self.size}: {num_rows % self.size} are left over"
            )

    @property
    def files(self) -> list[InputFile]:
        """The files of groups and of tokens, if any."""
        files = [self.file] if self.file else []
        if isinstance(self.share_prefixes, str | os.PathLike):
            paths = map(str, megatron_paths(self.share_prefixes))
            # Only tokens are read from them, so they have no rows.
            files += [InputFile(path=path, stamp=FileStamp.of(path), num_rows=0) for path in paths]
        return files

    @property
    def said(self) -> str:
        """The rule in words, for the manifest, as in `GroupRecord.by`."""
        rule = "groups"
        if self.size:
            rule = f"every {self.size} rows"
        elif self.column:
            rule = f"column {self.column!r}"
        return rule if self.share_prefixes is None else f"{rule}, sharing prefixes"
