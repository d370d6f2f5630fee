"""`NAME.mixture.toml`: a mixture as its user writes it.

Owns the file's fields and the refusal of wrong ones. Leaves changes of its text to `appending`, opening the datasets,
and the positions at which stages end, to `open_mixture`, and which bins a mixture draws to `packhorse.epoch`.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum
from typing import Any, TypeVar

from packhorse.dataset.errors import PreparedDatasetError
from packhorse.dataset.files.toml_files import (
    FieldError,
    array_header,
    checked_field,
    line_of,
    no_field,
    table_header,
)
from packhorse.epoch import MAX_WINDOWS, WeightsBy, WhenOut
from packhorse.parameters import parameter
from packhorse.topology import checked_integer

MIXTURE_SUFFIX = ".mixture.toml"
"""The end of a mixture's file name, after the mixture's name."""

MOST_MIXTURE_BYTES = 4 << 20
"""The most bytes of a mixture's file; a larger file is refused."""

_MOST_BINS = 2**62
"""The most bins of an epoch or a step, and the largest count at which a stage ends."""
_MOST_TOKENS = 2**31 - 1
"""The largest max_seq_len."""
_MOST_EPOCHS = 10**6
"""The most epochs of a component in one epoch of the mixture."""
_MOST_WEIGHT = Decimal(10) ** 12
"""The largest weight."""
_MOST_DECIMALS = 15
"""The most decimal places of a weight."""
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_WINDOWED = re.compile(r"windowed\((\d+)\)")
_GLOBAL = "global"
_UNTIL_FIELDS = "until_bins, until_tokens or until_steps"

_Choice = TypeVar("_Choice", bound=StrEnum)


class MixtureError(PreparedDatasetError):
    """A mixture's file, or a dataset that it names, is wrong; the message says what and where."""


class Draw(StrEnum):
    """How much of a component the mixture takes at a time, before it chooses a component again."""

    BINS = "bins"
    """One bin."""
    STEPS = "steps"
    """All bins of a step, over all ranks."""


class Unit(StrEnum):
    """The unit in which the end of a stage is given. It is counted from the beginning of the run."""

    BINS = "bins"
    """`until_bins`: bins of the mixture."""
    TOKENS = "tokens"
    """`until_tokens`: tokens of sequences, on average over bins."""
    STEPS = "steps"
    """`until_steps`: steps of `bins_per_step` bins."""


@dataclass(frozen=True, slots=True)
class Until:
    """The end of a stage, such as `until_bins = 5000`."""

    count: int
    """Number of units from the beginning of the run, at least 1."""
    unit: Unit = Unit.BINS
    """Unit of the number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEntry:
    """One stage of the file, a table [[stages]].

    Example:
        >>> StageEntry(weights={"web": 70, "code": 30}).by
        <WeightsBy.BINS: 'bins'>
    """

    weights: Mapping[str, int | Decimal]
    """Component → weight of at least 0, as written: an integer, or a decimal of at most 15 places."""
    by: WeightsBy = WeightsBy.BINS
    """Quantity that weights are shares of."""
    until: Until | None = None
    """End of the stage, where the next one begins; None for the last."""

    def __post_init__(self) -> None:
        """Checks the weights."""
        for name, weight in self.weights.items():
            is_number = isinstance(weight, int | Decimal) and not isinstance(weight, bool)
            if not is_number or Decimal(weight).is_nan() or weight < 0:
                raise ValueError(f"weights.{name} must be a number of at least 0, got {_shown(weight)}")
            if weight > _MOST_WEIGHT or round(Decimal(weight), _MOST_DECIMALS) != weight:
                raise ValueError(
                    f"weights.{name} must be at most {_MOST_WEIGHT:.0e}, with at most {_MOST_DECIMALS} decimal "
                    f"places, got {weight!s}"
                )
        if not any(self.weights.values()):
            raise ValueError(parameter("weights") + " are all 0: give a component a weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentEntry:
    """The table [components.NAME] of a component.

    Example:
        >>> ComponentEntry(num_windows=64).most_epochs
        1
    """

    num_windows: int = 1
    """Number of locality windows in each epoch of the component; 1 shuffles it as a whole."""
    most_epochs: int = 1
    """The most epochs of the component in one epoch of the mixture, if components are not repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureFile:
    r"""The content of a mixture's file.

    Example:
        >>> MixtureFile.parse('[[stages]]\nweights = {web = 70, code = 30}', "my.mixture.toml").names
        ('web', 'code')
    """

    stages: tuple[StageEntry, ...]
    """Stages in order, at least one."""
    when_out: WhenOut = WhenOut.REPEAT
    """Policy after the last bin of a component's epoch."""
    epoch_bins: int | None = None
    """Bins in an epoch of the mixture; None for as many as its components have, see `packhorse.epoch.Mixture`."""
    bins_per_step: int | None = None
    """Bins in one step over all ranks; needed if stages end at steps, or if steps are drawn."""
    draw: Draw = Draw.BINS
    """How much of a component is drawn at a time."""
    max_seq_len: int | None = None
    """Capacity of the mixture's bins in tokens; several bins of a shorter component are joined into one. None for the
    capacity of the longest component; bins of shorter ones are then not joined, and leave room."""
    components: Mapping[str, ComponentEntry] = field(default_factory=dict)
    """Component → its table. A component without a table is missing here, and has the defaults of `ComponentEntry`."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of components, in the order in which weights first name them; a later stage adds names at the end."""
        return tuple(dict.fromkeys(name for stage in self.stages for name in stage.weights))

    @classmethod
    def parse(cls, text: str, file: str) -> "MixtureFile":
        """Reads a file's text.

        Args:
            text: TOML.
            file: its name, for messages.

        Raises:
            MixtureError: it is not TOML, or a field is missing, unknown or wrong; names the line and the field.
        """
        try:
            content = tomllib.loads(text, parse_float=Decimal)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise MixtureError(f"{file} is not TOML: {error}") from None
        with _naming_line(file, text):
            stages = _read_stages(content, file, text)
            when_out = _choice("", content, "when_out", WhenOut, WhenOut.REPEAT)
            draw = _choice("", content, "draw", Draw, Draw.BINS)
            bins_per_step = _integer("", content, "bins_per_step", _MOST_BINS)
            if draw is Draw.STEPS and bins_per_step is None:
                raise FieldError(
                    "draw", 'draw = "steps" needs bins_per_step = N beside it: world_size · batch_size bins make a step'
                )
            epoch_bins = _integer("", content, "epoch_bins", _MOST_BINS)
            if draw is Draw.STEPS and epoch_bins and bins_per_step and (rest := epoch_bins % bins_per_step):
                raise FieldError(
                    "epoch_bins",
                    f'epoch_bins = {epoch_bins} is not a whole number of steps, which draw = "steps" needs: take a '
                    f"multiple of bins_per_step, e.g. {epoch_bins - rest + bins_per_step}",
                )
            mixture = cls(
                stages=stages,
                when_out=when_out,
                epoch_bins=epoch_bins,
                bins_per_step=bins_per_step,
                draw=draw,
                max_seq_len=_integer("", content, "max_seq_len", _MOST_TOKENS),
            )
        for number in range(len(stages)):
            with _naming_line(file, text, array_header("stages"), number):
                _check_end(mixture, number)
        return replace(mixture, components=_read_components(content.get("components", {}), mixture, file, text))

    @property
    def bins_per_draw(self) -> int:
        """Bins of one component that follow each other at each draw: `bins_per_step`, or 1 if single bins are drawn."""
        return (self.bins_per_step or 1) if self.draw is Draw.STEPS else 1

    def appended(self, stage: StageEntry, from_position: int) -> "MixtureFile":
        """Returns the file with one more stage, which begins at `from_position` of the run."""
        checked_integer("from_position", from_position, 1, _MOST_BINS)
        last = replace(self.stages[-1], until=Until(from_position))
        return replace(self, stages=(*self.stages[:-1], last, stage))

    def cut(self, num_stages: int) -> "MixtureFile":
        """Returns the file with only its first stages, at least one; the last of them no longer ends."""
        last = replace(self.stages[num_stages - 1], until=None)
        return replace(self, stages=(*self.stages[: num_stages - 1], last))


def render_stage(stage: StageEntry) -> str:
    """Returns the TOML of a stage without `until`.

    Example:
        >>> print(render_stage(StageEntry(weights={"web": 70, "code": 30})), end="")
        [[stages]]
        weights = {web = 70, code = 30}
    """
    weights = ", ".join(f"{_toml_key(name)} = {weight}" for name, weight in stage.weights.items())
    by = "" if stage.by is WeightsBy.BINS else f'by = "{stage.by}"\n'
    return f"[[stages]]\n{by}weights = {{{weights}}}\n"


@contextmanager
def _naming_line(file: str, text: str, header: str = "", number: int = 0) -> Iterator[None]:
    """Turns a FieldError of the body into a MixtureError with the file and the line.

    The other arguments are those of `line_of`.
    """
    try:
        yield
    except FieldError as error:
        raise MixtureError(f"{file}, line {line_of(text, error.field, header, number)}: {error}") from None


def _read_stages(content: dict[str, Any], file: str, text: str) -> tuple[StageEntry, ...]:
    """Reads the tables [[stages]], and refuses unknown fields at the top of the file."""
    _check_keys("", content, ("stages", "when_out", "epoch_bins", "bins_per_step", "draw", "max_seq_len", "components"))
    tables = content.get("stages")
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise FieldError(
            "stages", "stages must be tables, at least one: [[stages]] and below it weights = {web = 70, …}"
        )
    stages = []
    for number, table in enumerate(tables):
        with _naming_line(file, text, array_header("stages"), number):
            stages.append(_read_stage(f"stages[{number}].", table))
    return tuple(stages)


def _read_stage(prefix: str, table: dict[str, Any]) -> StageEntry:
    """Reads one table [[stages]]; `prefix` is the beginning of its fields' names in messages, such as "stages[0]."."""
    _check_keys(prefix, table, ("weights", "by", *(f"until_{unit}" for unit in Unit)))
    weights = table.get("weights")
    if not isinstance(weights, dict) or not weights:
        raise FieldError(
            "weights", f"{prefix}weights must give each component a number, e.g. weights = {{web = 70, code = 30}}"
        )
    units = [unit for unit in Unit if f"until_{unit}" in table]
    if len(units) > 1:
        key = f"until_{units[1]}"
        raise FieldError(key, f"{prefix}until_{units[0]} and {prefix}{key} say the same in two ways; keep one")
    until = None
    if units:
        count = _integer(prefix, table, f"until_{units[0]}", _MOST_BINS)
        assert count is not None
        until = Until(count, units[0])
    by = _choice(prefix, table, "by", WeightsBy, WeightsBy.BINS)
    try:
        return StageEntry(weights=weights, by=by, until=until)
    except ValueError as error:
        raise FieldError("weights", f"{prefix}{error}") from None


def _check_end(mixture: MixtureFile, number: int) -> None:
    """Refuses a stage whose end is missing, or is counted in a unit that the file cannot have."""
    until, prefix = mixture.stages[number].until, f"stages[{number}]."
    is_last = number == len(mixture.stages) - 1
    if until is None:
        if not is_last:
            raise FieldError("", f"{prefix}until_bins is missing, and another stage follows: end it by {_UNTIL_FIELDS}")
        return
    key = f"until_{until.unit}"
    if is_last:
        raise FieldError(
            key, f"{prefix}{key}: the last stage has no end; leave it out, or add another [[stages]] after it"
        )
    if until.unit is Unit.STEPS and mixture.bins_per_step is None:
        raise FieldError(
            key,
            f"{prefix}{key} needs bins_per_step = N at the top of the file: world_size · batch_size bins make a step",
        )
    if until.unit is Unit.TOKENS and mixture.when_out is WhenOut.REWEIGH:
        raise FieldError(
            key,
            f'{prefix}{key} does not go with when_out = "reweigh", under which the tokens of a bin change as '
            "components run out; use until_bins or until_steps",
        )


def _read_components(tables: object, mixture: MixtureFile, file: str, text: str) -> dict[str, ComponentEntry]:
    """Reads the tables [components.NAME]."""
    with _naming_line(file, text):
        if not isinstance(tables, dict):
            raise FieldError(
                "components", 'components must be tables: [components.web] and below it shuffle = "windowed(64)"'
            )
    entries = {}
    for name, table in tables.items():
        with _naming_line(file, text, table_header("components", name)):
            entries[name] = _read_component(name, table, mixture)
    return entries


def _read_component(name: str, table: object, mixture: MixtureFile) -> ComponentEntry:
    """Reads the table [components.NAME] of one component."""
    table_name = f"components.{name}"
    if name not in mixture.names:
        raise FieldError(name, f"{table_name}: no stage gives {name} a weight; there are {', '.join(mixture.names)}")
    if not isinstance(table, dict):
        raise FieldError(
            name, f'{table_name} must be a table, e.g. [{table_name}] and below it shuffle = "windowed(64)"'
        )
    _check_keys(f"{table_name}.", table, ("shuffle", "epochs"))
    if "epochs" in table and mixture.when_out is WhenOut.REPEAT:
        raise FieldError(
            "epochs", f'{table_name}.epochs needs when_out = "reweigh" or "stop": repeated, a component never runs out'
        )
    shuffle = table.get("shuffle", _GLOBAL)
    return ComponentEntry(
        num_windows=checked_field("shuffle", lambda: _num_windows(f"{table_name}.shuffle", shuffle)),
        most_epochs=_integer(f"{table_name}.", table, "epochs", _MOST_EPOCHS) or 1,
    )


def _num_windows(field_name: str, shuffle: object) -> int:
    """Reads a field `shuffle`: "global" is one window, "windowed(64)" is 64."""
    if shuffle == _GLOBAL:
        return 1
    match = _WINDOWED.fullmatch(shuffle) if isinstance(shuffle, str) else None
    if match is None:
        raise ValueError(f'{field_name} must be "global" or "windowed(W)", e.g. "windowed(64)", got {shuffle!r}')
    return checked_integer(f"{field_name}: windows", int(match[1]), 1, MAX_WINDOWS)


def _check_keys(prefix: str, table: Mapping[str, Any], known: tuple[str, ...]) -> None:
    """Refuses a field that is not one of `known`."""
    for key in table:
        if key not in known:
            raise FieldError(key, f"{prefix}{key} {no_field(key, known)}")


def _shown(value: object) -> str:
    """Returns a value as its user wrote it, without the class name of a Decimal."""
    return str(value) if isinstance(value, Decimal) else repr(value)


def _integer(prefix: str, table: Mapping[str, Any], key: str, most: int) -> int | None:
    """Returns a field's integer in [1, most]; None if the field is missing."""
    if key not in table:
        return None
    value = table[key]
    shown = float(value) if isinstance(value, Decimal) else value  # as it was written
    return checked_field(key, lambda: checked_integer(f"{prefix}{key}", shown, 1, most))


def _choice(prefix: str, table: Mapping[str, Any], key: str, kind: type[_Choice], default: _Choice) -> _Choice:
    """Returns a field that has a fixed set of values, as a member of `kind`."""
    value = table.get(key, default)
    if not isinstance(value, str) or value not in list(kind):
        raise FieldError(key, f"{prefix}{key} must be one of {', '.join(kind)}, got {value!r}")
    return kind(value)


def _toml_key(name: str) -> str:
    """Returns a component's name as a TOML key, in quotes if TOML needs them."""
    return name if _BARE_KEY.fullmatch(name) else json.dumps(name)
