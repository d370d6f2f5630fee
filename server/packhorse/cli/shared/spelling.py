"""Messages of the library, spelled with the flags of a command: `max_seq_len` becomes `--max-seq-len`.

Leaves how the library marks a parameter in a message to `packhorse.parameters`.
"""

from collections.abc import Iterable, Mapping

import click

from packhorse.parameters import Message, Parameter


def in_flags(message: str, parameters: Iterable[click.Parameter]) -> str:
    """Returns a message of the library with its parameters spelled as flags of the command that runs.

    Only what the library marked as a parameter changes; a parameter without a flag stays as it is. An option that
    `flags_of` made from an object's field is found by the field's names too: `columns.length` is `--length-column`.

    Example:
        >>> from packhorse.parameters import parameter
        >>> message = parameter("max_seq_len") + " is over 8; pass " + parameter("over_length", "drop")
        >>> in_flags(message, [click.Option(["--max-seq-len"]), click.Option(["--over-length"])])
        '--max-seq-len is over 8; pass --over-length drop'
    """
    if not isinstance(message, Message):
        return message
    flags = {}
    for option in parameters:
        if isinstance(option, click.Option):
            flag = max(option.opts, key=len)  # --help rather than -h
            of_flag = flag.removeprefix("--").replace("-", "_")
            flags.update(dict.fromkeys((of_flag, str(option.name), *getattr(option, "fields", ())), flag))
    return message.spelled(lambda parameter: _spelled(parameter, flags))


def _spelled(parameter: Parameter, flags: Mapping[str, str]) -> str:
    """Returns a parameter as its flag, with the value that the message gives: `--over-length drop`, `--no-eos`."""
    if parameter.value is False:  # append_eos=False is --no-eos
        return flags.get(f"no_{parameter.name.removeprefix('append_')}", str(parameter))
    flag = flags.get(parameter.name)
    if flag is None:
        return str(parameter)
    return f"{flag} {parameter.value}" if parameter.has_value and parameter.value is not True else flag
