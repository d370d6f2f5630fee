"""Options that several commands share: how a server is reached, which part of which epoch, and where tokens are.

Owns their names and help, how a field of an options object becomes a flag (its class alone states name, type, default
and help), the file of profiles, and finding a tokenizer beside its tokens. Leaves connecting to `service`, which values
go together to the options object, and flags in its errors to `packhorse.cli`.
"""

import ast
import inspect
import math
import os
import textwrap
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from difflib import get_close_matches
from enum import StrEnum
from functools import wraps
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

import click
from click.core import ParameterSource

from packhorse.cli import in_flags
from packhorse.formats.retry_policy import TIMEOUT_VARIABLE
from packhorse.parameters import message_of
from packhorse.storage import read_text
from packhorse.topology import Skips, Topology

if TYPE_CHECKING:
    from packhorse.client import TokenSource


_METAVARS = {int: "N", float: "SECONDS"}


def field_texts(kind: type) -> dict[str, str]:
    """Returns the docstring of each of a class's fields, on one line.

    Example:
        >>> from packhorse.dataset import PlanOptions
        >>> field_texts(PlanOptions)["max_seq_len"]
        "A bin's capacity in tokens, in [1, 2^31)."
    """
    [body] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    texts = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            texts[ast.unparse(field.target)] = " ".join(str(text.value.value).split())
    return texts


def flags_of(
    kind: type,
    argument: str,
    *,
    names: Mapping[str, str] | None = None,
    choices: Mapping[str, list[str]] | None = None,
    leave_out: tuple[str, ...] = (),
    is_optional: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds a flag for each field of a dataclass to a command, which receives the object itself.

    Args:
        kind: the dataclass.
        argument: the command's argument that receives the object.
        names: field → flag's name, with underscores, where they differ.
        choices: field → possible values, where its type does not list them.
        leave_out: fields without a flag.
        is_optional: whether the argument is None where no flag is given.
    """
    names, choices = names or {}, choices or {}
    hints, texts = get_type_hints(kind), field_texts(kind)
    own = {each.name: each for each in fields(kind) if each.init and each.name not in leave_out}
    flag_of = {name: names.get(name, name) for name in own}

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def with_object(*arguments: Any, **options: Any) -> Any:
            given = {name: options.pop(flag) for name, flag in flag_of.items()}
            is_left_out = is_optional and all(given[name] == own[name].default for name in own)
            try:
                made = None if is_left_out else kind(**given)
            except ValueError as error:
                raise click.UsageError(
                    in_flags(message_of(error), click.get_current_context().command.params)
                ) from None
            return command(*arguments, **options, **{argument: made})

        decorated: Callable[..., Any] = with_object
        for name in reversed(own):
            text = texts[name]
            for field, flag in flag_of.items():
                text = text.replace(f"`{field}`", f"--{flag.replace('_', '-')}")
            option = _option(flag_of[name], own[name].default, hints[name], choices.get(name), text)
            decorated = option(decorated)
            decorated.__click_params__[-1].fields = (name, f"{argument}.{name}")  # type: ignore[attr-defined]
        return decorated

    return decorate


def _option(
    flag: str, default: Any, hint: Any, choices: list[str] | None, text: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    names = "--" + flag.replace("_", "-"), flag
    if get_origin(hint) in (UnionType, Union):
        [hint] = [each for each in get_args(hint) if each is not NoneType]
    if hint is bool:
        return click.option(*names, is_flag=True, default=default, help=text)
    if choices is None and get_origin(hint) is Literal:
        choices = list(get_args(hint))
    elif isinstance(hint, type) and issubclass(hint, StrEnum):
        choices, default = [each.value for each in hint], default.value
    kind: Any = click.Choice(choices) if choices else hint if hint in (int, float) else str
    return click.option(
        *names,
        type=kind,
        required=default is MISSING,
        default=None if default is MISSING else default,
        show_default=default not in (MISSING, None),
        metavar=_of_choices(choices)
        if choices
        else _METAVARS.get(hint, "NAME" if flag.endswith("_column") else "VALUE"),
        help=f"{text} One of {', '.join(choices)}." if choices and _of_choices(choices) else text,
    )


def _of_choices(choices: list[str]) -> str | None:
    """Returns a short metavar for many choices, which click would write into one line; None if they fit."""
    return None if len("|".join(choices)) <= 60 else f"[{choices[0]}|{choices[1]}|…]"


_PROFILES_VARIABLE = "PACKHORSE_PROFILES"
_PROFILES = "~/.config/packhorse/profiles.toml"
_PATHS = ("ca", "cert", "key", "token_file")
ACCESS_KEYS = (*_PATHS, "insecure")
"""Keys of a profile by which server and client identify each other."""
_PROFILE_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("target", *_PATHS), (str,)),
    "insecure": (bool,),
    "timeout_seconds": (int, float),
}


class Seconds(click.FloatRange):
    """A time in seconds. NaN, which passes every comparison of a range, is refused."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Returns the number."""
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value!r} is not a number of seconds.", param, ctx)
        return seconds


class Wait(Seconds):
    """A time to wait for an answer: `inf` becomes thirty years, the longest that sockets and gRPC accept."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Returns the number."""
        return min(super().convert(value, param, ctx), 1e9)


def remote_timeout_option(command: Callable[..., Any], *, says: str = "", **options: Any) -> Callable[..., Any]:
    """Adds --timeout-seconds for everything remote, in child processes too, while the command runs."""

    def keep(context: click.Context, option: click.Parameter, value: float | None) -> float | None:
        value = of_profile(context, option, value)
        if value is not None:
            before = os.environ.get(TIMEOUT_VARIABLE)
            os.environ[TIMEOUT_VARIABLE] = repr(value)
            context.call_on_close(lambda: _restore(before))
        return value

    return click.option(
        "--timeout-seconds",
        type=Seconds(0, min_open=True),
        metavar="S",
        envvar=TIMEOUT_VARIABLE,
        show_envvar=True,
        callback=keep,
        help=says
        or "How long to keep trying without an answer from an object store.  [default: 10 if it has never answered, "
        "120 if the connection was lost]",
        **options,
    )(command)


def store_timeout_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --timeout-seconds to a command that connects only to object stores."""
    return remote_timeout_option(command, expose_value=False)


def _restore(before: str | None) -> None:
    os.environ.pop(TIMEOUT_VARIABLE, None)
    if before is not None:
        os.environ[TIMEOUT_VARIABLE] = before


PROFILE = f"{__name__}.profile"
"""The key of the profile in a command's context."""


def profile_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --profile; `service.access_of_command` returns its certificates and tokens."""

    def keep(context: click.Context, option: click.Parameter, value: str | None) -> None:
        if value is not None:
            context.meta[PROFILE] = read_profile(value)

    return click.option(
        "--profile",
        metavar="NAME",
        envvar="PACKHORSE_PROFILE",
        show_envvar=True,
        callback=keep,
        expose_value=False,
        is_eager=True,
        help="How to reach the server: target, ca, cert, key, token_file, insecure and timeout_seconds of [NAME] in "
        "~/.config/packhorse/profiles.toml, or in the file of PACKHORSE_PROFILES. A profile overrides "
        "PACKHORSE_CLIENT_… variables; flags override a profile.",
    )(command)


def read_profile(name: str) -> dict[str, Any]:
    """Returns the keys and values of a profile, a table of the file; paths in it are relative to the file.

    Raises:
        click.UsageError: the file, the profile or a key is missing or wrong; the message names it.
    """
    path = Path(os.environ.get(_PROFILES_VARIABLE) or _PROFILES).expanduser()
    try:
        profiles = tomllib.loads(read_text(path))
    except FileNotFoundError:
        raise click.UsageError(
            f'there is no {path} for --profile {name}; write one with [{name}] and target = "HOST:PORT", or set '
            f"{_PROFILES_VARIABLE} to another file"
        ) from None
    except (OSError, ValueError) as error:
        raise click.UsageError(f"{path} cannot be read as TOML: {error}") from None
    profile = profiles.get(name)
    if not isinstance(profile, dict):
        known = ", ".join(sorted(key for key, value in profiles.items() if isinstance(value, dict))) or "none"
        raise click.UsageError(f"{path} has no profile {name!r}; it has {known}")
    for key, value in profile.items():
        _check_profile_key(path, name, key, value)
    beside = {key: str(path.parent / Path(profile[key]).expanduser()) for key in _PATHS if key in profile}
    return {**profile, **beside}


def _check_profile_key(path: Path, name: str, key: str, value: object) -> None:
    where = f"{path}: [{name}]"
    if key not in _PROFILE_TYPES:
        near = get_close_matches(key, _PROFILE_TYPES, 1)
        meant = f"did you mean {near[0]}?" if near else f"a profile has {', '.join(_PROFILE_TYPES)}"
        raise click.UsageError(f"{where} has the key {key!r}; {meant}")
    if not isinstance(value, _PROFILE_TYPES[key]) or (isinstance(value, bool) and key != "insecure"):
        wanted = {"insecure": "true or false", "timeout_seconds": "a number of seconds"}.get(key, "text")
        raise click.UsageError(f"{where} {key} must be {wanted}, got {value!r}")


def of_profile(context: click.Context, option: click.Parameter, value: Any) -> Any:
    """Returns an option's value: from the command line, or else from the profile."""
    if context.get_parameter_source(str(option.name)) is ParameterSource.COMMANDLINE:
        return value
    return context.meta.get(PROFILE, {}).get(option.name, value)


def target_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --target and --profile."""
    return click.option(
        "--target",
        envvar="PACKHORSE_TARGET",
        show_envvar=True,
        default="127.0.0.1:50051",
        callback=of_profile,
        help="Server (HOST:PORT, several with commas, dns:///HOST:PORT, unix:PATH), or embedded:DIR for a folder.",
    )(profile_option(command))


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --epoch and --seed."""
    for option in (
        click.option("--seed", default=0, type=click.IntRange(0), help="Seed of the run."),
        click.option("--epoch", default=0, type=click.IntRange(0), help="Epoch, 0-based."),
    ):
        command = option(command)
    return command


def dataset_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the argument DATASET: a prepared folder, a mixture's file, or a name at --target."""
    return click.argument("dataset")(command)


def topology_options(command: Callable[..., Any], *, leave_out: tuple[str, ...] = ("mode",)) -> Callable[..., Any]:
    """Adds the flags of a topology, which the command receives as `topology`, and --skip as `skip`."""

    def parse(context: click.Context, option: click.Parameter, value: tuple[str, ...]) -> Skips:
        try:
            return Skips.parse(value)
        except ValueError as error:
            raise click.UsageError(in_flags(message_of(error), [option])) from None

    skip = click.option(
        "--skip", multiple=True, metavar="FIRST:END", callback=parse, help="Positions to leave out, e.g. 1200:1300."
    )
    return flags_of(Topology, "topology", leave_out=leave_out)(skip(command))


def token_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --tokens, --id-column and --tokenizer."""
    for option in (
        click.option(
            "--tokenizer",
            type=click.Path(path_type=Path),
            help="A tokenizer.json that decodes tokens. [default: the one that packhorse tokenize wrote beside them]",
        ),
        click.option("--id-column", help="The column of --tokens that holds ids.  [default: the dataset's]"),
        click.option(
            "--tokens",
            help="Token file or folder of the trainers: adds the sequences' own lengths, rows and tokens. For a "
            "mixture one for each component: NAME=PATH,NAME=PATH.",
        ),
    ):
        command = option(command)
    return command


def open_tokens(tokens: str | None, id_column: str | None = None) -> "TokenSource | None":
    """Opens a token source; returns None where no path is given."""
    if tokens is None:
        if id_column is not None:
            raise click.UsageError("--id-column belongs to --tokens; give --tokens as well")
        return None
    from packhorse.client import as_token_source

    return as_token_source(by_component(tokens), id_column=id_column)


def by_component(tokens: str) -> str | dict[str, str]:
    """Returns the path of --tokens, or the paths of a mixture's components, given as NAME=PATH,NAME=PATH.

    Example:
        >>> by_component("corpus.idx"), by_component("web=web.idx,code=code.idx")
        ('corpus.idx', {'web': 'web.idx', 'code': 'code.idx'})
    """
    pairs = [part.partition("=") for part in tokens.split(",")]
    if Path(tokens).exists() or not all(name and equals and path for name, equals, path in pairs):
        return tokens
    return {name.strip(): path for name, _, path in pairs}
