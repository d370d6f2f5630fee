"""The rows of fine-tuning: conversations, prompts and responses, or preferences, and how each becomes sequences.

Owns which columns each form has and what their cells must be. Leaves reading rows to `_rows`, and encoding to
`packhorse.sft`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from packhorse.sft import ChatEncoder, ChatTokenizer, EncodedSequence, NoTargetsError, PairEncoder
from packhorse.sft.messages import Turns, called, json_fault
from packhorse.sft.pairs import check_pair, common_prompt, pair_messages
from packhorse.tokenize.tokenizers import end_of_sequence, load_tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateColumns:
    """The options of rows of messages, whatever else they hold."""

    tools: str | None = None
    """Column of the tools that a conversation may call: a list of JSON schemas, or its JSON text."""
    chat_template: Path | None = None
    """File with the template; None for the tokenizer's own."""
    template_options: Mapping[str, Any] = field(default_factory=dict)
    """What else the template sees, such as `{"enable_thinking": False}`."""

    @property
    def is_templated(self) -> bool:
        """Whether an option is given that only rows of messages have."""
        return bool(self.tools or self.chat_template or self.template_options)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatColumns(TemplateColumns):
    """Rows that hold conversations."""

    messages: str = "messages"
    """Column of the messages: a list, or its JSON text; also in ShareGPT's form."""
    train_turns: Turns = "all"
    """Whether all turns of the assistant are trained on, or only the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairColumns(TemplateColumns):
    """Rows with a prompt and a response: both text, or both lists of messages."""

    prompt: str
    """Column of the prompt."""
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
    """Column of the prompt; None if both answers begin with it."""
    chosen: str = "chosen"
    """Column of the better answer."""
    rejected: str = "rejected"
    """Column of the other."""
    eos: bool | str = True
    """As in `PairColumns`."""


AnyColumns = ChatColumns | PairColumns | PreferenceColumns


class RowEncoder:
    """Encodes rows of one form.

    Args:
        columns: of the rows.
        tokenizer: made ready for chats.
        path: its `tokenizer.json`.
        cutoff_len: longer sequences are cut to it; None cuts nothing.
    """

    required: list[str]
    """Columns that every row has, in the order in which `read` takes them."""

    def __init__(self, columns: AnyColumns, tokenizer: ChatTokenizer, path: Path, cutoff_len: int | None) -> None:
        self.optional = [columns.tools] if columns.tools is not None else []
        self._columns = columns
        self._tokenizer = tokenizer
        self._path = path
        self._cutoff_len = cutoff_len

    def read(self, *cells: Any) -> list[Any]:
        """Returns one item to encode for each sequence of a row, from its required and then its optional cells.

        Raises:
            NoTargetsError: the row teaches nothing.
            ValueError: a cell is not what it must be.
        """
        raise NotImplementedError

    def encode(self, items: Sequence[Any]) -> list[EncodedSequence]:
        """Encodes the items of some rows, many at once, also those without a token to train on."""
        is_text = [isinstance(item, tuple) for item in items]
        texts = iter(self._pairs.encode([item for item in items if isinstance(item, tuple)]) if any(is_text) else ())
        chats = iter(
            self.chats.encode([item for item in items if not isinstance(item, tuple)]) if not all(is_text) else ()
        )
        return [next(texts if text else chats) for text in is_text]

    @cached_property
    def chats(self) -> ChatEncoder:
        """Encodes messages."""
        return ChatEncoder(
            self._tokenizer,
            chat_template=self._columns.chat_template,
            max_tokens=self._cutoff_len,
            train_turns=self._columns.train_turns if isinstance(self._columns, ChatColumns) else "all",
            template_options=self._columns.template_options,
        )

    @cached_property
    def _pairs(self) -> PairEncoder:
        assert not isinstance(self._columns, ChatColumns)
        eos = self._columns.eos
        if eos is True:
            eos = end_of_sequence(load_tokenizer(self._path), self._path, none="eos=False")
        return PairEncoder(self._tokenizer, max_tokens=self._cutoff_len, eos=eos)

    def _answered(self, prompt: Any, response: Any, tools: Any, names: tuple[str, str]) -> Any:
        """Returns the item of a prompt and one response to it."""
        assert not isinstance(self._columns, ChatColumns)
        is_chat = [not isinstance(cell, str) for cell in (prompt, response)]
        if is_chat == [False, False]:
            if self._columns.is_templated:
                raise ValueError(
                    f"the {names[0]} is text, but chat_template, template_options and tools_column are for lists of "
                    "messages; leave them out"
                )
            self._pairs  # noqa: B018 - fails here if nothing ends a sequence
            return check_pair(prompt, response)
        if is_chat != [True, True] or not all(isinstance(cell, list) for cell in (prompt, response)):
            kinds = [called(cell) for cell in (prompt, response)]
            raise ValueError(
                f"the {names[0]} is {kinds[0]} and the {names[1]} is {kinds[1]}; both are text, or both lists of "
                "messages"
            )
        if self._columns.eos is not True:
            raise ValueError("the chat template ends the turns of messages; leave out eos")
        return self.chats.render(pair_messages(prompt, response), _parsed("tools", tools))


class Chats(RowEncoder):
    """Rows of conversations."""

    def __init__(self, columns: ChatColumns, *args: Any) -> None:
        super().__init__(columns, *args)
        self.required = [columns.messages]
        self.chats  # noqa: B018 - a wrong template fails before any work

    def read(self, messages: Any, tools: Any = None) -> list[Any]:
        """See `RowEncoder`."""
        return [self.chats.render(_parsed("messages", messages), _parsed("tools", tools))]


class Pairs(RowEncoder):
    """Rows of prompts and responses."""

    def __init__(self, columns: PairColumns, *args: Any) -> None:
        super().__init__(columns, *args)
        self.required = [columns.prompt, columns.response]

    def read(self, prompt: Any, response: Any, tools: Any = None) -> list[Any]:
        """See `RowEncoder`."""
        return [self._answered(prompt, response, tools, ("prompt", "response"))]


class Preferences(RowEncoder):
    """Rows of a chosen and a rejected answer; each is two sequences."""

    def __init__(self, columns: PreferenceColumns, *args: Any) -> None:
        super().__init__(columns, *args)
        self.required = [columns.chosen, columns.rejected, *([columns.prompt] if columns.prompt is not None else [])]

    def read(self, chosen: Any, rejected: Any, *cells: Any) -> list[Any]:
        """See `RowEncoder`."""
        assert isinstance(self._columns, PreferenceColumns)
        if chosen == rejected:
            raise NoTargetsError("chosen and rejected are the same answer, which prefers nothing")
        if self._columns.prompt is not None:
            prompt, *cells = cells  # type: ignore[assignment]
            if isinstance(chosen, list) and (isinstance(prompt, str) or chosen[: len(prompt)] == prompt):
                raise ValueError("the chosen answer holds its prompt already; name no column of prompts")
        else:
            prompt, chosen, rejected = common_prompt(chosen, rejected)
        tools = cells[0] if cells else None
        return [
            self._answered(prompt, chosen, tools, ("prompt", "chosen answer")),
            self._answered(prompt, rejected, tools, ("prompt", "rejected answer")),
        ]


def row_encoder(columns: AnyColumns, tokenizer: ChatTokenizer, path: Path, cutoff_len: int | None) -> RowEncoder:
    """Returns the encoder for rows of these columns; the arguments are those of `RowEncoder`."""
    if isinstance(columns, ChatColumns):
        return Chats(columns, tokenizer, path, cutoff_len)
    if isinstance(columns, PairColumns):
        return Pairs(columns, tokenizer, path, cutoff_len)
    return Preferences(columns, tokenizer, path, cutoff_len)


def _parsed(name: str, value: Any) -> Any:
    """Decodes nested values that a table keeps as JSON text, so that not every row gets the columns of all others."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError as error:
        raise ValueError(f"the {name} are text that is not JSON: {json_fault(error)}") from None
