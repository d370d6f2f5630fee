"""From a row of fine-tuning to sequences: one for a conversation or a pair, two for a preference.

Owns what a conversation or an answer must be, and their errors. A row's cells first become items, one for each
sequence, and then rows are encoded many at once. Leaves which cells make the items of each form to `_row_forms`, the
options of each form to `columns`, reading rows to `input/rows`, and encoding to `packhorse.sft`.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from packhorse.parameters import parameter
from packhorse.sft import (
    ChatEncoder,
    ChatTokenizer,
    EncodedSequence,
    ExplainedSequence,
    PairEncoder,
    Stretch,
)
from packhorse.sft.forms.plain_data import called, json_fault
from packhorse.sft.forms.sharegpt import as_messages
from packhorse.sft.messages import FLAGS
from packhorse.sft.pairs import check_pair, pair_messages
from packhorse.tokenize.columns import AnyColumns, ChatColumns
from packhorse.tokenize.encoding.special_texts import special_pattern
from packhorse.tokenize.encoding.tokenizers import end_of_sequence, load_tokenizer
from packhorse.tokenize.encoding.unknown_characters import UnknownCharacters

if TYPE_CHECKING:
    from packhorse.sft.rendering import RenderedChat

FROM_TOKENIZER = "tokenizer"
"""The origin, in explanations, of tokens that the tokenizer puts around a text."""

_STANDARD = ("tools", "system", "developer", "chat_template_kwargs")
"""Standard names of optional columns that belong to a conversation."""

_LABELS = ("label", "kto_tag")
_VERDICTS = (*_LABELS, *FLAGS)
"""Standard names of columns with a verdict: whether, or how much, a model should learn from the row."""

Cells = Mapping[str, Any]
"""Kind of a cell ("messages", "prompt", "tools", …) → its value; None if it is missing."""


class _TextPair(NamedTuple):
    """An item to encode: a prompt and a response that are text. The other kind of item is a rendered chat."""

    prompt: str
    response: str
    names: tuple[str, str]
    """The columns of the prompt and the response."""
    unused: list[str]
    """Columns of the row that have a value, and that only rows of messages use."""


Item: TypeAlias = "_TextPair | RenderedChat"
"""What becomes one sequence: a pair of texts, or a conversation as its template writes it."""


class RowEncoder:
    """Encodes rows of one form.

    Args:
        columns: the columns of the rows, and their options.
        tokenizer: the tokenizer, with its chat template.
        path: the tokenizer's `tokenizer.json`.
        cutoff_len: the number of tokens to which longer sequences are cut; None cuts nothing.
    """

    def __init__(
        self,
        columns: AnyColumns,
        tokenizer: ChatTokenizer,
        path: Path,
        cutoff_len: int | None,
        *,
        own: Mapping[str, str | None],
        standard: Collection[str] = (),
    ) -> None:
        """`own` has the form's columns (kind → name), and `standard` names of optional columns that only it has."""
        self._columns = columns
        self._tokenizer = tokenizer
        self._path = path
        self._cutoff_len = cutoff_len
        self._own = {kind: column for kind, column in own.items() if column is not None}
        named = {"tools": columns.tools} if columns.tools else {}
        kinds = [*_STANDARD, *_VERDICTS, *standard]
        self._more = named | {
            kind: kind
            for kind in kinds
            if kind not in named and kind not in self._own.values() and kind not in columns.ignore
        }
        self.required = list(self._own.values())
        """Names of columns that every row must have."""
        self.optional = list(self._more.values())
        """Names of columns that are read if they are there."""
        self.named = list(named.values())
        """Names of optional columns that the user gave."""

    def read(self, *values: Any) -> list[Item]:
        """Returns a row's items, one for each sequence.

        `values` are the cells of the columns `required` and `optional`, in this order.

        Raises:
            NoTargetsError: the row has nothing to train on.
            ValueError: a cell does not hold what it must hold.
        """
        cells = dict(zip([*self._own, *self._more], values, strict=True))
        found = {kind: cells.get(kind) for kind in _VERDICTS if cells.get(kind) not in (None, "", [])}
        for kind, value in found.items():
            _check_verdict(kind, value)
        unread = [f"column {kind}" for kind, value in found.items() if not isinstance(value, bool | int | float)]
        items = self._items(cells)
        return [_with_unused(item, unread) for item in items] if unread else items

    def unused(self, items: Sequence[Item], others: Sequence[str]) -> dict[str, int]:
        """Returns the fields with values that a row's tokens will lack: field → number of such values.

        `others` are columns of the row that have a value and are not read.

        Raises:
            ValueError: there is such a field, and the option `strict` refuses it.
        """
        ignored = {field.removeprefix("column ") for field in self._columns.ignore}
        found: dict[str, int] = {f"column {name}": 1 for name in others if name not in ignored}
        for item in items:
            unused = dict.fromkeys(item.unused, 1) if isinstance(item, _TextPair) else item.unused
            for name, count in unused.items():
                if name.partition(",")[0].removeprefix("column ") not in ignored:
                    found[name] = max(count, found.get(name, 0))
        if found and self._columns.strict:
            raise ValueError(
                f"{', '.join(found)} would not be in the tokens; use a template that writes it, take it out of the "
                "data, or ignore it by name"
            )
        return found

    def special_texts(self, items: Sequence[Item]) -> list[str]:
        """Returns the special tokens that the texts of a row spell, one entry for each occurrence.

        Raises:
            ValueError: there is one, and the option `special_in_text` refuses it.
        """
        texts = self._tokenizer.special_texts
        if not texts:
            return []
        own = [text for item in items for text in (item[:2] if isinstance(item, _TextPair) else item.own_texts())]
        found = [text for each in own for text in special_pattern(texts).findall(each)]
        if found and self._columns.special_in_text == "error":
            raise ValueError(
                f"the row spells the special token {found[0]!r}; take it out, or write it as the token with "
                + parameter("special_in_text", "keep")
            )
        return found

    def _items(self, cells: Cells) -> list[Item]:
        """Returns the items of a row's cells; each form has its own."""
        raise NotImplementedError

    def encode(self, items: Sequence[Item]) -> list[EncodedSequence]:
        """Encodes the items of several rows, in their order; sequences without a token to train on are among them."""
        pairs = [(item.prompt, item.response) for item in items if isinstance(item, _TextPair)]
        chats = [item for item in items if not isinstance(item, _TextPair)]
        of_pairs = iter(self.pairs.encode(pairs) if pairs else ())
        of_chats = iter(self.chats.encode(chats) if chats else ())
        return [next(of_pairs if isinstance(item, _TextPair) else of_chats) for item in items]

    def num_unknown(self, items: Sequence[Item], sequences: Sequence[EncodedSequence]) -> int:
        """Returns how many characters of these rows the tokenizer drops, or how many unknown tokens it made of them."""
        if self._unknown.known is not None:  # a chat with such a character is refused
            pairs = [item for item in items if isinstance(item, _TextPair)]
            return sum(len(self._tokenizer.dropped_in(text)) for pair in pairs for text in pair[:2])
        number = self._unknown.unknown_id
        return 0 if number is None else sum(int((each.input_ids == number).sum()) for each in sequences)

    @cached_property
    def _unknown(self) -> UnknownCharacters:
        return UnknownCharacters.of(self._tokenizer.model)

    def explain(self, *cells: Any) -> list[ExplainedSequence]:
        """Returns a row's sequences with the origin of each range of tokens; takes and raises what `read` does."""
        return [
            self._explained_pair(item) if isinstance(item, _TextPair) else self.chats.explain_rendered(item)
            for item in self.read(*cells)
        ]

    def _explained_pair(self, pair: _TextPair) -> ExplainedSequence:
        """Returns a pair's sequence with the origins of its tokens: tokenizer, prompt, response, tokenizer.

        The prompt, as far as the cutoff keeps it, is not trained on. All that follows is.
        """
        (encoded,) = self.pairs.encode([(pair.prompt, pair.response)])
        ids = encoded.input_ids.tolist()
        cut = len(ids) - int(encoded.loss_mask.sum())
        begin = self.pairs.num_opening(ids)
        end = len(ids) - self.pairs.num_closing(ids)
        edges = ((0, begin, FROM_TOKENIZER), (begin, cut, pair.names[0]), (cut, end, pair.names[1]))
        stretches = [
            Stretch(
                first=first,
                end=last,
                text=str(self._tokenizer.model.decode(ids[first:last], skip_special_tokens=False)),
                is_trained=first >= cut,
                message=None,
                field=field,
            )
            for first, last, field in (*edges, (end, len(ids), FROM_TOKENIZER))
            if first < last
        ]
        return ExplainedSequence(
            text=pair.prompt + pair.response,
            input_ids=encoded.input_ids,
            loss_mask=encoded.loss_mask,
            stretches=tuple(stretches),
            unused=tuple(pair.unused),
        )

    @cached_property
    def chats(self) -> ChatEncoder:
        """The encoder of lists of messages."""
        is_chat = isinstance(self._columns, ChatColumns)
        return ChatEncoder(
            self._tokenizer,
            chat_template=self._columns.chat_template,
            max_tokens=self._cutoff_len,
            cutoff=self._columns.cutoff,
            train_turns=self._columns.train_turns if isinstance(self._columns, ChatColumns) else "all",
            template_options=self._columns.template_options,
            turn_end=self._columns.turn_end,
            eos=self._columns.eos if is_chat and isinstance(self._columns.eos, str) else None,
            ignore=self._columns.ignore,
        )

    @cached_property
    def pairs(self) -> PairEncoder:
        """The encoder of prompts and responses that are text."""
        assert not isinstance(self._columns, ChatColumns)
        eos = self._columns.eos
        if eos is True:
            eos = end_of_sequence(load_tokenizer(self._path), self._path, none="eos")
        return PairEncoder(self._tokenizer, max_tokens=self._cutoff_len, cutoff=self._columns.cutoff, eos=eos)

    def _rendered(self, messages: Any, cells: Cells) -> Item:
        """Returns the item of a conversation: its messages, rendered with the row's system text, tools and options."""
        messages = as_messages(messages)
        for role in ("developer", "system"):
            said = cells.get(role)
            if said is None or (isinstance(said, str) and not said.strip()):
                continue
            if not isinstance(said, str) or not isinstance(messages, Sequence):
                raise ValueError(f"the column {role} holds {called(said)}, not text")
            first = messages[0] if messages and isinstance(messages[0], Mapping) else {}
            if first.get("role") == role and first.get("content") != said:
                raise ValueError(f"the column {role} and the first message, of the {role}, differ; keep one of them")
            messages = messages if first.get("role") == role else [{"role": role, "content": said}, *messages]
        options = parsed_cell("chat_template_kwargs", cells.get("chat_template_kwargs"))
        if options is not None and not isinstance(options, Mapping):
            raise ValueError(
                f"chat_template_kwargs is {called(options)}; it is an object, such as {{'thinking': true}}"
            )
        return self.chats.render(messages, parsed_cell("tools", cells.get("tools")) or None, options=options)

    def _answered(self, prompt: Any, response: Any, cells: Cells, names: tuple[str, str]) -> Item:
        """Returns the item of a prompt and one response; both are text, or both are lists of messages.

        `names` says in error messages what the two are, such as ("prompt", "chosen answer").
        """
        assert not isinstance(self._columns, ChatColumns)
        is_chat = [not isinstance(cell, str) for cell in (prompt, response)]
        if is_chat == [False, False]:
            if self._columns.is_templated:
                raise ValueError(
                    f"the {names[0]} is text, but "
                    + parameter("chat_template")
                    + ", "
                    + parameter("template_options")
                    + ", "
                    + parameter("turn_end")
                    + " and "
                    + parameter("tools_column")
                    + " are for lists of messages; leave them out"
                )
            self.pairs  # noqa: B018 - fails here if nothing ends a sequence
            unused = [f"column {kind}" for kind in _STANDARD if cells.get(kind)]
            return _TextPair(
                *check_pair(prompt, response), (self._columns_of(names[0]), self._columns_of(names[1])), unused
            )
        if is_chat != [True, True] or not all(isinstance(cell, list) for cell in (prompt, response)):
            kinds = [called(cell) for cell in (prompt, response)]
            raise ValueError(
                f"the {names[0]} is {kinds[0]} and the {names[1]} is {kinds[1]}; both are text, or both lists of "
                "messages"
            )
        if self._columns.eos is not True:
            raise ValueError("the chat template ends the turns of messages; leave out eos")
        return self._rendered(pair_messages(prompt, response), cells)

    def _columns_of(self, name: str) -> str:
        """Returns the column of a part of a pair, e.g. of "chosen answer" the column of the kind "chosen"."""
        return self._own.get(name.removesuffix(" answer"), name)


def _check_verdict(name: str, value: Any) -> None:
    """Refuses a row with a label, or with a weight that differs from the default, because a sequence keeps neither."""
    if not isinstance(value, bool | int | float):
        return
    if name in _LABELS:
        raise ValueError(
            f"the row has a {name}, by which KTO tells good answers from bad ones, and a sequence keeps none; leave "
            f"out the rows with false and then the column, or ignore {name} by name"
        )
    if value not in (0, 1) or bool(value) != FLAGS[name]:
        raise ValueError(
            f"the row has {name}: {json.dumps(value)}, and a sequence keeps none; leave the row out, weigh its dataset "
            f"in a mixture, or ignore {name} by name"
        )


def _with_unused(item: Item, names: Sequence[str]) -> Item:
    """Returns the item with further names of unused columns."""
    if isinstance(item, _TextPair):
        return item._replace(unused=[*item.unused, *names])
    return replace(item, unused={**item.unused, **dict.fromkeys(names, 1)})


def parsed_cell(name: str, value: Any) -> Any:
    """Returns a cell's value, decoded if it is JSON text.

    Tables hold nested values as JSON text because a column of structs would give every row the fields of all rows.
    """
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError as error:
        raise ValueError(f"the {name} are text that is not JSON: {json_fault(error)}") from None
