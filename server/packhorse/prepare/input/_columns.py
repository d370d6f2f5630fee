"""The columns of an input, as users name them: lengths, ids, groups and resources.

Owns these options and the checks that need no data. Whether a table has the columns is in `_tables`, and the values of
rows are in `_rows`.
"""

import re
from dataclasses import dataclass
from typing import Literal, Self, get_args

from packhorse.formats.object_store import without_secrets
from packhorse.parameters import parameter
from packhorse.topology import checked_integer

MOST_AMOUNT = 2**31 - 1
"""The most of one resource that a sequence may take."""

MOST_COST = 2**42
"""The most that one resource of a bin may cost: an optimizer step has up to 2^20 bins, and its costs are summed in 64
bits."""

_MOST_RESOURCES = 4
"""The most resources of a dataset."""

_RESOURCE = re.compile(r"(?P<name>[^=]+)=(?P<column>.+?)(?::(?P<cap>\d*))?(?::(?P<cost>\d+))?")
"""NAME=COLUMN, NAME=COLUMN:CAP or NAME=COLUMN:CAP:COST, of which CAP may be empty."""
_NUMBER_AT_END = re.compile(r":[-+.\d]+$")
"""A number after a colon, at the end of what was taken for a column's name."""

OnBadRow = Literal["error", "skip"]
"""Treatment of a row that cannot be planned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """Something besides tokens that sequences take of a bin, and how much of it a bin may have.

    Example:
        >>> Resource.parse("tiles=num_tiles:48")
        Resource(name='tiles', column='num_tiles', cap=48, cost=0)
    """

    name: str
    """Name of the resource, such as "tiles"."""
    column: str
    """The input column of each row's amount, in [0, 2^31): an integer; a list of integers, such as the tiles of each
    image, which are summed; or a list of grids (t, h, w), such as `image_grid_thw`, whose products are summed.
    """
    cap: int | None = None
    """The most that a bin may have. By default there is no limit, and the resource is only counted."""
    cost: int = 0
    """Cost of one when ranks are balanced, in the unit of a topology's `cost_linear`: the encoder's work for it,
    divided by the language model's work for a pair of tokens. By default 0.
    """

    def __post_init__(self) -> None:
        """Checks the fields; raises a ValueError if one is wrong."""
        for name in ("name", "column"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise ValueError(f"resource: its {name} must be a text, got {getattr(self, name)!r:.60}")
        if self.name == "tokens":
            raise ValueError(
                "resource: its name is 'tokens', whose cap is " + parameter("max_seq_len") + "; call it something else"
            )
        if self.cap is not None:
            checked_integer(f"the cap of resource {self.name!r}", self.cap, 1, MOST_AMOUNT)
        checked_integer(f"the cost of resource {self.name!r}", self.cost, 0, MOST_COST)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads NAME=COLUMN, NAME=COLUMN:CAP or NAME=COLUMN:CAP:COST; raises a ValueError for any other text."""
        found = _RESOURCE.fullmatch(text)
        if found is None or _NUMBER_AT_END.search(found["column"]):  # "num_tiles:-5" is a mistyped cap, not a column
            raise ValueError(
                parameter("resource")
                + " must be NAME=COLUMN, NAME=COLUMN:CAP or NAME=COLUMN:CAP:COST, such as tiles=num_tiles:48, "
                f"got {text!r:.60}"
            )
        name, column, cap, cost = found.groups()
        return cls(name=name, column=column, cap=int(cap) if cap else None, cost=int(cost) if cost else 0)

    def __str__(self) -> str:
        """The text that `parse` reads."""
        cost = f":{self.cost}" if self.cost else ""
        cap = f":{self.cap or ''}" if self.cap or cost else ""  # empty, but with its colon, before a cost
        return f"{self.name}={self.column}{cap}{cost}"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputColumns:
    """The columns of lengths, ids, groups and resources, and what happens to a bad row."""

    length: str | None = None
    """The column of lengths in tokens, or of lists of tokens. By default the column that holds tokens, chosen as by
    token sources; if there is none, the only column of integers that is called length, lengths, num_tokens, n_tokens,
    token_count or seq_len.
    """
    id: str | None = None
    """The column of ids or keys, each value once in the dataset. Integers are ids. Text, UUIDs and decimals without a
    fraction are keys: ids are then row numbers, and a table maps keys to ids and back. By default an id is the row
    number over all files of all inputs in order, from 0. The keys of a Megatron index are beside it, in `X.keys.arrow`.
    """
    on_bad_row: OnBadRow = "error"
    """"error" refuses a row whose length or id is null, below 1 token or beyond int64; "skip" leaves it out, and the
    manifest lists it. Repeated ids are always refused.
    """
    group: str | None = None
    """The column of groups, set from a `Grouping`; None without one."""
    resources: tuple[Resource, ...] = ()
    """What sequences need besides tokens, such as image tiles. With a cap, no bin has more."""
    key: str | None = None
    """Set if `id` is a column of keys, which are read in a separate pass. Ids are then row numbers."""

    def __post_init__(self) -> None:
        """Checks the fields that users give."""
        for name, column in (("length_column", self.length), ("id_column", self.id)):  # as `prepare` calls them
            if not isinstance(column, str | None):
                raise ValueError(f"{name} must be a column's name, got {column!r:.60}")
        if self.on_bad_row not in get_args(OnBadRow):
            raise ValueError(
                parameter("on_bad_row") + f" must be one of {', '.join(get_args(OnBadRow))}, got {self.on_bad_row!r}"
            )
        if not isinstance(self.resources, tuple) or not all(isinstance(each, Resource) for each in self.resources):
            raise ValueError(parameter("resources") + f" must be a tuple of Resource, got {self.resources!r:.60}")
        names = [each.name for each in self.resources]
        if len(set(names)) < len(names) or len(names) > _MOST_RESOURCES:
            raise ValueError(
                parameter("resources") + f" must be at most {_MOST_RESOURCES} of distinct names, got {', '.join(names)}"
            )

    @property
    def integers(self) -> tuple[str | None, str | None]:
        """Names of the columns of ids and of groups, which hold integers; None for a column that is not read."""
        return self.id, self.group

    @property
    def amounts(self) -> list[str]:
        """Names of the columns of resources."""
        return [each.column for each in self.resources]

    @property
    def names(self) -> list[str]:
        """Names of all columns that are read, each once."""
        names = (self.length, *self.integers, *self.amounts)
        return list(dict.fromkeys(name for name in names if name is not None))


def refuse_columns(path: str, kind: str, columns: InputColumns) -> None:
    """Refuses columns if the input is of a kind without columns; raises a ValueError.

    Args:
        path: the input.
        kind: its kind for messages, such as "a Megatron index".
        columns: the columns as the user named them.
    """
    where = without_secrets(path)
    if columns.group is not None:
        raise ValueError(
            f"{where} is {kind}, which has no columns: "
            + parameter("group_size", "N")
            + " makes groups of every N entries, and "
            + parameter("groups", "FILE.npy")
            + " names each entry's"
        )
    if columns.resources:
        raise ValueError(f"{where} is {kind}, which has no columns, so none of resources: prepare from a table of both")
    if columns.length is not None or columns.id is not None:
        raise ValueError(
            f"{where} is {kind}, which has no columns: leave out "
            + parameter("length_column")
            + "/"
            + parameter("id_column")
        )
