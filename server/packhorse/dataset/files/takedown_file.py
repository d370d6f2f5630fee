"""`NAME.takedown.toml`: redactions and skips of a dataset or a mixture, as its user writes them.

Owns the file's fields, the refusal of wrong ones by field and line, files of ids, and turning keys into ids. Leaves
lists of ids and keys to `sequence_names`, adding a redaction to `redacting`, and finding redacted sequences in bins to
`open_takedown`.
"""

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset.digest import fingerprint
from packhorse.dataset.errors import PreparedDatasetError
from packhorse.dataset.files._long_lists import loads_with_lists
from packhorse.dataset.files.sequence_names import checked_names, parse_ids
from packhorse.dataset.files.toml_files import FieldError, array_header, checked_field, line_of, no_field, text_of
from packhorse.dataset.keys import Keys
from packhorse.formats.keys import shown_key
from packhorse.topology import Skips, checked_integer

TAKEDOWN_SUFFIX = ".takedown.toml"
"""The end of a takedown's file name, after the name of the dataset or mixture."""

MOST_TAKEDOWN_BYTES = 32 << 20
"""The most bytes of a takedown's file, or of a file of ids; a larger one is refused."""

_MOST_TOKEN = 2**31 - 1
_MOST_SEED = _MOST_EPOCH = 2**64 - 1
_MOST_POSITION = 2**62
"""The largest values of fields with integers."""
_REDACT_FIELDS = ("ids", "ids_file", "action", "token", "component", "seed", "from_position", "reason")
_SKIP_FIELDS = ("positions", "epoch", "seed", "reason")


class TakedownError(PreparedDatasetError):
    """A takedown's file is wrong; the message says what and where."""


class Action(StrEnum):
    """Treatment of a redacted sequence's tokens."""

    MASK = "mask"
    """The tokens stay in the row, and no loss is taken on them."""
    REPLACE = "replace"
    """One token, the same for all, replaces each of them, and no loss is taken on it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Redaction:
    """Sequences whose tokens are masked from the loss, or replaced.

    Example:
        >>> Redaction(ids=np.array([4, 7])).action
        <Action.MASK: 'mask'>
    """

    ids: NDArray[np.int64]
    """Ids of the sequences: int64 [n], ascending, distinct."""
    keys: tuple[str, ...] = ()
    """Keys of further sequences, in a dataset with keys: ascending, distinct; see `resolved`."""
    token: int | None = None
    """The token that replaces each of their tokens; None to mask them only."""
    component: str = ""
    """Their component in a mixture; empty in a dataset."""
    seed: int | None = None
    """Seed of a run that had already trained on them before `from_position`; None if there is no such run."""
    from_position: int = 0
    """Position of that run, epoch · num_bins + position, from which the redaction applies. In any other run it applies
    from the beginning."""
    reason: str = ""
    """Reason, for people."""

    @property
    def action(self) -> Action:
        """Treatment of the sequences' tokens."""
        return Action.MASK if self.token is None else Action.REPLACE

    def digest(self, after: str) -> str:
        """Returns a digest of this redaction and all redactions before it, whose digest is `after` ("" without any)."""
        ids = self.ids.astype("<i8").tobytes().hex()
        return fingerprint([after, self.component, ids, self.token, self.seed, self.from_position, *self.keys])

    def resolved(self, table: Keys | None) -> tuple["Redaction", list[str]]:
        """Returns the same redaction with ids instead of keys, and a list of its keys that the table does not have.

        Args:
            table: the keys of the redaction's dataset or component; None if that has no keys.

        Raises:
            ValueError: the redaction names keys, and the table is None.
        """
        if not self.keys:
            return self, []
        if table is None:
            raise ValueError(
                f"{shown_key(self.keys[0])[:80]} is not a whole number, so it is a key, and there are no keys: "
                "`prepare` makes them from an id column of text"
            )
        found = table.ids_of(self.keys)  # -1 for a key that the table does not have
        ids = np.union1d(self.ids, found[found >= 0])
        unknown = [key for key, sequence_id in zip(self.keys, found.tolist(), strict=True) if sequence_id < 0]
        return replace(self, ids=ids, keys=()), unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipEntry:
    """Positions of an epoch whose bins are left out."""

    positions: Skips
    """Ranges of positions of an epoch."""
    epoch: int | None = None
    """Number of the epoch; None for every epoch."""
    seed: int | None = None
    """Seed of the run; None for every run."""
    reason: str = ""
    """Reason, for people."""


ReadIds = Callable[[str], str]
"""A function that returns the text of a file of ids, by its name; it raises a TakedownError if it cannot be read."""


@dataclass(frozen=True)
class TakedownFile:
    r"""The content of a takedown's file.

    Example:
        >>> file = TakedownFile.parse('[[redact]]\nids = [17, 4]\nreason = "private"', "web.takedown.toml")
        >>> file.redactions[0].ids.tolist(), file.redactions[0].reason
        ([4, 17], 'private')
    """

    redactions: tuple[Redaction, ...] = ()
    """Redactions in the file's order. If several name an id, the last of them applies."""
    skips: tuple[SkipEntry, ...] = ()
    """Skips in the file's order."""
    ids_files: tuple[str, ...] = ()
    """Names of the files of ids that redactions refer to."""

    @cached_property
    def chain(self) -> tuple[str, ...]:
        """A digest for each redaction, which covers the redactions before it too."""
        digests: list[str] = []
        for redaction in self.redactions:
            digests.append(redaction.digest(digests[-1] if digests else ""))
        return tuple(digests)

    def skips_of(self, epoch: int, seed: int) -> Skips:
        """Returns the positions that an epoch of a run leaves out."""
        return Skips.of(
            pair
            for entry in self.skips
            if entry.epoch in (None, epoch) and entry.seed in (None, seed)
            for pair in entry.positions.ranges
        )

    def resolved(self, tables: Mapping[str, Keys | None]) -> "TakedownFile":
        """Returns the same content with ids instead of keys. An unknown key takes nothing away, like an unknown id.

        Args:
            tables: component → its keys, None if it has none; the name is "" if the file is of a dataset.

        Raises:
            TakedownError: a redaction names keys of a dataset or component that has no keys.
        """
        if not any(redaction.keys for redaction in self.redactions):
            return self
        redactions = []
        for number, redaction in enumerate(self.redactions):
            if redaction.component in tables:  # any other component is refused later, by `Takedown.of_mixture`
                try:
                    redaction, _ = redaction.resolved(tables[redaction.component])
                except ValueError as error:
                    raise TakedownError(f"redact[{number}].ids: {error}") from None
            redactions.append(redaction)
        return replace(self, redactions=tuple(redactions))

    def is_same(self, other: "TakedownFile") -> bool:
        """Returns whether another file takes away the same sequences and positions."""
        return self.chain == other.chain and self.skips == other.skips

    @classmethod
    def parse(cls, text: str, file: str, read_ids: ReadIds | None = None) -> "TakedownFile":
        """Reads a file's text.

        Args:
            text: TOML.
            file: its name, for messages.
            read_ids: reads files of ids; None if there are none.

        Raises:
            TakedownError: it is not TOML, or a field is missing, unknown or wrong; names file, line and field.
        """
        try:
            content = loads_with_lists(text, "ids")
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise TakedownError(f"{file} is not TOML: {error}") from None
        for key in content:
            if key not in ("redact", "skip"):
                raise TakedownError(
                    f"{file}, line {line_of(text, key)}: a takedown has no table {key}; there are [[redact]], with "
                    'ids = [17, 4711], and [[skip]], with positions = "1200:1300"'
                )
        redactions, ids_files = [], []
        for number, table in _tables_of(content, "redact", text, file):
            with _naming_line(file, text, "redact", number):
                redactions.append(_read_redaction(table, read_ids))
                if "ids_file" in table:
                    ids_files.append(table["ids_file"])
        skips = []
        for number, table in _tables_of(content, "skip", text, file):
            with _naming_line(file, text, "skip", number):
                skips.append(_read_skip(table))
        return cls(tuple(redactions), tuple(skips), tuple(ids_files))


def read_ids_of(path: Path, refuse: Callable[[Path], None] = lambda _: None) -> ReadIds:
    """Returns a function that reads files of ids; they must be in the folder of the takedown's file.

    Example:
        >>> size = Path("gone.txt").write_text("3 4")
        >>> read_ids_of(Path("web.takedown.toml"))("gone.txt")
        '3 4'

    Args:
        path: path of the takedown's file.
        refuse: a function that raises an error for a file that may not be read.
    """

    def read(name: str) -> str:
        """Returns the text of a file of ids that is in the same folder."""
        if not name or Path(name).name != name or name.startswith("."):
            raise TakedownError(
                f"{name!r} is not the name of a file beside {path.name}; put it there, and give only its name"
            )
        ids_file = path.with_name(name)
        refuse(ids_file)
        return takedown_text(ids_file)

    return read


def takedown_text(path: Path) -> str:
    """Reads a takedown's file, or a file of ids.

    Example:
        >>> size = Path("gone.txt").write_text("3 4")
        >>> takedown_text(Path("gone.txt"))
        '3 4'

    Raises:
        TakedownError: it cannot be read, is too large, or is not text.
    """
    return text_of(path, MOST_TAKEDOWN_BYTES, TakedownError)


def _read_redaction(table: dict[str, Any], read_ids: ReadIds | None) -> Redaction:
    """Reads one table [[redact]]; raises a FieldError."""
    _refuse_unknown_fields(table, _REDACT_FIELDS)
    if ("ids" in table) == ("ids_file" in table):
        raise FieldError("ids", "give ids = [17, 4711], or ids_file = NAME of a file beside this one, and not both")
    if "ids" in table:
        if not isinstance(table["ids"], list):
            raise FieldError("ids", f"must be a list of ids, e.g. [17, 4711], got {table['ids']!r}")
        names = checked_field("ids", lambda: checked_names(table["ids"], "it"))
    else:
        name = table["ids_file"]
        if not isinstance(name, str) or read_ids is None:
            raise FieldError("ids_file", f"must be the name of a file, got {name!r}")
        names = checked_field("ids_file", lambda: parse_ids(read_ids(name), name))
    action = table.get("action", Action.REPLACE if "token" in table else Action.MASK)
    if action not in list(Action):
        raise FieldError("action", f"must be one of {', '.join(Action)}, got {action!r}")
    if (action == Action.REPLACE) != ("token" in table):
        raise FieldError("token", 'say which token replaces theirs: token = ID with action = "replace", and only there')
    if ("seed" in table) != ("from_position" in table):
        raise FieldError(
            "from_position",
            "seed = S and from_position = P belong together: the run of seed S had trained on these sequences before P",
        )
    return Redaction(
        ids=names.ids,
        keys=names.keys,
        token=_integer(table, "token", _MOST_TOKEN),
        component=_text(table, "component"),
        seed=_integer(table, "seed", _MOST_SEED),
        from_position=_integer(table, "from_position", _MOST_POSITION) or 0,
        reason=_text(table, "reason"),
    )


def _read_skip(table: dict[str, Any]) -> SkipEntry:
    """Reads one table [[skip]]; raises a FieldError."""
    _refuse_unknown_fields(table, _SKIP_FIELDS)
    positions = table.get("positions")
    if not isinstance(positions, str):
        raise FieldError("positions", f'must be a range, e.g. "1200:1300", got {positions!r}')
    skips = checked_field("positions", lambda: Skips.parse([positions]))
    if not skips:
        raise FieldError("positions", 'holds no range; give one, e.g. "1200:1300"')
    return SkipEntry(
        positions=skips,
        epoch=_integer(table, "epoch", _MOST_EPOCH),
        seed=_integer(table, "seed", _MOST_SEED),
        reason=_text(table, "reason"),
    )


@contextmanager
def _naming_line(file: str, text: str, kind: str, number: int) -> Iterator[None]:
    """Turns a FieldError of the body into a TakedownError with the file, the line and the table."""
    try:
        yield
    except FieldError as error:
        line = line_of(text, error.field, array_header(kind), number)
        raise TakedownError(f"{file}, line {line}: {kind}[{number}].{error.field}: {error}") from None


def _tables_of(content: dict[str, Any], kind: str, text: str, file: str) -> Iterable[tuple[int, dict[str, Any]]]:
    """Returns the tables [[kind]] of a file with their numbers; refuses anything that is not a list of tables."""
    tables = content.get(kind, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise TakedownError(f"{file}, line {line_of(text, kind)}: {kind} must be tables: [[{kind}]], with two brackets")
    return enumerate(tables)


def _refuse_unknown_fields(table: dict[str, Any], known: tuple[str, ...]) -> None:
    """Raises a FieldError for the first field that a table cannot have."""
    for field in table:
        if field not in known:
            raise FieldError(field, no_field(field, known))


def _integer(table: dict[str, Any], field: str, most: int) -> int | None:
    """Returns a field's integer in [0, most]; None if the field is missing."""
    return None if field not in table else checked_field(field, lambda: checked_integer("it", table[field], 0, most))


def _text(table: dict[str, Any], field: str) -> str:
    """Returns a field's text; "" if the field is missing."""
    value = table.get(field, "")
    if not isinstance(value, str):
        raise FieldError(field, f"must be text in quotes, got {value!r}")
    return value
