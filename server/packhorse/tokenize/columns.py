"""The three forms of fine-tuning rows: conversations, pairs of prompt and response, and preferences.

Owns the columns and options of each form, and recognizing a form by the standard names of its columns. How a row
becomes sequences is in `encoding/row_encoder`.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from packhorse.parameters import parameter
from packhorse.sft.chat import TurnEnd
from packhorse.sft.cutting import Cutoff
from packhorse.sft.messages import Turns
from packhorse.tokenize.input.files import TEXT_KINDS, find_inputs, listed
from packhorse.tokenize.input.parts import whole_files
from packhorse.tokenize.input.rows import first_column_names


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateColumns:
    """Options that all three forms have, because in each of them rows may hold lists of messages.

    Columns named `tools`, `system`, `developer` and `chat_template_kwargs` are read if they are there.
    """

    tools: str | None = None
    """Column of the tools that a conversation may call: a list of JSON schemas, or its JSON text. None for `tools`."""
    chat_template: Path | None = None
    """File with the template; None for the tokenizer's own."""
    template_options: Mapping[str, Any] = field(default_factory=dict)
    """Further variables of the template, such as `{"enable_thinking": False}`."""
    turn_end: TurnEnd = "template"
    """What ends a turn: the template's own mark in it ("template"), or else the mark that begins the next message
    ("next")."""
    cutoff: Cutoff = "oldest"
    """What happens to a row beyond the cutoff: its oldest exchanges and the beginning of its prompt are left out
    ("oldest"), or the whole row is left out ("drop")."""
    strict: bool = False
    """Whether a row is refused if one of its values, which `ignore` does not name, is not in its tokens."""
    special_in_text: Literal["keep", "error"] = "keep"
    """What happens if a row's text spells a special token: it becomes the token, as in transformers ("keep"), or the
    row is refused ("error")."""
    ignore: tuple[str, ...] = ()
    """Columns, and fields of messages such as `messages.name`, that are left out without being counted."""

    @property
    def is_templated(self) -> bool:
        """Whether an option is given that has an effect on lists of messages only."""
        return bool(self.tools or self.chat_template or self.template_options or self.turn_end != "template")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatColumns(TemplateColumns):
    """Rows that hold conversations."""

    messages: str = "messages"
    """Column of the messages: a list, or its JSON text; also in ShareGPT's form."""
    train_turns: Turns = "all"
    """Whether all turns of the assistant are trained on, or only the last one."""
    eos: str | None = None
    """The token that ends a sequence if its last turn has no end; None for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairColumns(TemplateColumns):
    """Rows with a prompt and a response: both text, or both lists of messages."""

    prompt: str
    """Column of the prompt. To Alpaca's `instruction`, an `input` is added after a line break."""
    response: str
    """Column of the response; only responses are trained on."""
    eos: bool | str = True
    """Whether a text response ends with the tokenizer's end-of-sequence token; or the token that ends it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceColumns(TemplateColumns):
    """Rows with a chosen and a rejected answer to one prompt: text, or lists of messages.

    Each row becomes two sequences with the prompt in both, the chosen one first: groups of two.
    """

    prompt: str | None = None
    """Column of the prompt; None for `prompt`, or if both answers begin with it."""
    chosen: str = "chosen"
    """Column of the better answer."""
    rejected: str = "rejected"
    """Column of the worse answer."""
    eos: bool | str = True
    """As in `PairColumns`."""


AnyColumns = ChatColumns | PairColumns | PreferenceColumns


def standard_columns(names: Collection[str]) -> AnyColumns | None:
    """Recognizes the form of rows by standard column names; returns None if the names fit no form.

    Example:
        >>> standard_columns(["id", "conversations", "tools"]).messages
        'conversations'

    Raises:
        ValueError: the names fit several forms, or a form and plain text.
    """
    fitting: list[AnyColumns] = []
    fitting += [ChatColumns(messages=name) for name in ("messages", "conversations") if name in names]
    if "chosen" in names and "rejected" in names:
        fitting.append(PreferenceColumns())
    for prompt, response in (("prompt", "completion"), ("prompt", "response"), ("instruction", "output")):
        if prompt in names and response in names:
            fitting.append(PairColumns(prompt=prompt, response=response))
    if len(fitting) > 1 or (fitting and "text" in names):  # with a column "text", the rows may be plain text
        raise ValueError(
            f"the rows have columns of several forms ({', '.join(sorted(set(names)))}); say which to read with "
            + parameter("messages_column")
            + ", "
            + parameter("prompt_column")
            + " and "
            + parameter("response_column")
            + ", "
            + parameter("chosen_column")
            + " and "
            + parameter("rejected_column")
            + ", or "
            + parameter("text_column")
        )
    return fitting[0] if fitting else None


def columns_of(inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> AnyColumns | None:
    """Recognizes the form of the rows in files by standard column names; returns None if they have no such form.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "sums.jsonl")
        ...     _ = file.write_text('{"prompt": "2 + 2 =", "completion": " 4"}')
        ...     columns_of(file).response
        'completion'

    Args:
        inputs: as for `tokenize_fine_tuning`. Only the first file of rows is looked at.

    Raises:
        FileNotFoundError: an input is not there.
        ValueError: the names fit several forms, or a form and plain text.
    """
    first = next((file for file in find_inputs(listed(inputs)).files if file.kind not in TEXT_KINDS), None)
    if first is None:
        return None
    (whole_file,) = whole_files([first])
    return standard_columns(first_column_names(whole_file.range))
