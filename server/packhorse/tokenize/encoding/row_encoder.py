"""From a row of fine-tuning to sequences: one for a conversation or a pair, two for a preference.

Owns what a conversation or an answer must be, and their errors. A row's cells first become items, one for each
sequence, and then rows are encoded many at once. Leaves which cells make the items of each form to `row_forms`, the
options of each form to `columns`, reading rows to `input/rows`, and encoding to `packhorse.sft`.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
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
from packhorse.sft.messages import FLAGS, Turns
from packhorse.sft.pairs import check_pair, pair_messages
from packhorse.tokenize.columns import AnyColumns, ChatColumns
from packhorse.tokenize.encoding._unknown_characters import UnknownCharacters
from packhorse.tokenize.encoding.special_texts import special_pattern
from packhorse.tokenize.encoding.tokenizers import load_tokenizer, required_eos

if TYPE_CHECKING:
    from packhorse.sft.rendering import RenderedChat

FROM_TOKENIZER = "tokenizer"
"""The origin, in explanations, of tokens that the tokenizer puts around a text."""

_STANDARD = ("tools", "system", "developer", "chat_template_kwargs")
"""Standard names of optional columns that belong to a conversation."""

_LABELS = ("label", "kto_tag")
"""Standard names of the column in which KTO says whether an answer is good."""

_VERDICTS = (*_LABELS, *FLAGS)
"""Standard names of columns with a verdict: whether, or how much, a model should learn from the row."""

Cells = Mapping[str, Any]
"""Kind of a cell ("messages", "prompt", "tools", …) → its value; None if it is missing."""


class _TextPair(NamedTuple):
    """An item to encode: a prompt and a response that are text. The other kind of item is a rendered chat."""

    prompt: str
    response: str
    prompt_column: str
    """Name of the prompt's column, for explanations."""
    response_column: str
    """Name of the column of the response, or of one of the answers."""
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
        form_columns: the form's columns: kind of cell → name; None for a column that rows lack.
        form_options: standard names of optional columns that only this form has.
    """

    def __init__(
        self,
        columns: AnyColumns,
        tokenizer: ChatTokenizer,
        path: Path,
        cutoff_len: int | None,
        *,
        form_columns: Mapping[str, str | None],
        form_options: Collection[str] = (),
    ) -> None:
        self._columns = columns
        self._tokenizer = tokenizer
        self._path = path
        self._cutoff_len = cutoff_len
        # Both dicts have kind of cell → name of its column.
        self._required_columns = {kind: column for kind, column in form_columns.items() if column is not None}
        named = {"tools": columns.tools} if columns.tools else {}
        taken = {*named, *self._required_columns.values(), *columns.ignore}
        standard = (*_STANDARD, *_VERDICTS, *form_options)
        # A standard column's name is also its kind.
        self._optional_columns = named | {name: name for name in standard if name not in taken}
        self.required = list(self._required_columns.values())
        """Names of columns that every row must have."""
        self.optional = list(self._optional_columns.values())
        """Names of columns that are read if they are there."""
        self.named = list(named.values())
        """Names of optional columns that the user gave. At least one row must have each."""

    def read(self, *values: Any) -> list[Item]:
        """Returns a row's items, one for each sequence.

        `values` are the cells of the columns `required` and `optional`, in this order.

        Raises:
            NoTargetsError: the row has nothing to train on.
            ValueError: a cell does not hold what it must hold.
        """
        cells = dict(zip([*self._required_columns, *self._optional_columns], values, strict=True))
        unread: list[str] = []
        for kind in _VERDICTS:
            value = cells.get(kind)
            if isinstance(value, bool | int | float):
                _check_verdict(kind, value)
            elif value not in (None, "", []):  # not a verdict on the row, and in no token
                unread.append(f"column {kind}")
        items = self._items(cells)
        return [_with_unused(item, unread) for item in items] if unread else items

    def unused(self, items: Sequence[Item], others: Sequence[str]) -> dict[str, int]:
        """Returns the fields with values that a row's tokens will lack: field → number of such values.

        `others` are columns of the row that have a value and are not read.

        Raises:
            ValueError: there is such a field, and the option `strict` refuses it.
        """
        # A field is "column NAME", or of messages "messages.name"; a note on it may follow after a comma.
        ignored = {field.removeprefix("column ") for field in self._columns.ignore}
        found: dict[str, int] = {f"column {name}": 1 for name in others if name not in ignored}
        for item in items:
            unused = dict.fromkeys(item.unused, 1) if isinstance(item, _TextPair) else item.unused
            for name, count in unused.items():
                if name.partition(",")[0].removeprefix("column ") not in ignored:
                    # Both answers of a preference lack the fields of their prompt: these count once.
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
        row_texts: list[str] = []
        for item in items:
            row_texts += (item.prompt, item.response) if isinstance(item, _TextPair) else item.own_texts()
        found = [special for text in row_texts for special in special_pattern(texts).findall(text)]
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
        text_pairs = [(item.prompt, item.response) for item in items if isinstance(item, _TextPair)]
        rendered_chats = [item for item in items if not isinstance(item, _TextPair)]
        # An encoder is made when it is first used: rows of messages need no token that ends a text, and conversely.
        encoded_pairs = iter(self.pairs.encode(text_pairs) if text_pairs else ())
        encoded_chats = iter(self.chats.encode(rendered_chats) if rendered_chats else ())
        return [next(encoded_pairs if isinstance(item, _TextPair) else encoded_chats) for item in items]

    def num_unknown(self, items: Sequence[Item], sequences: Sequence[EncodedSequence]) -> int:
        """Returns how many characters of these rows the tokenizer drops, or how many unknown tokens it made of them."""
        if self._unknown.known is not None:  # a chat with such a character is refused
            text_pairs = [item for item in items if isinstance(item, _TextPair)]
            texts = [text for pair in text_pairs for text in (pair.prompt, pair.response)]
            return sum(len(self._tokenizer.dropped_in(text)) for text in texts)
        unknown_id = self._unknown.unknown_id
        return 0 if unknown_id is None else sum(int((encoded.input_ids == unknown_id).sum()) for encoded in sequences)

    @cached_property
    def _unknown(self) -> UnknownCharacters:
        return UnknownCharacters.of(self._tokenizer.model)

    def explain(self, *values: Any) -> list[ExplainedSequence]:
        """Returns a row's sequences with the origin of each range of tokens; takes and raises what `read` does."""
        return [
            self._explained_pair(item) if isinstance(item, _TextPair) else self.chats.explain_rendered(item)
            for item in self.read(*values)
        ]

    def _explained_pair(self, pair: _TextPair) -> ExplainedSequence:
        """Returns a pair's sequence with the origins of its tokens: tokenizer, prompt, response, tokenizer.

        The prompt, as far as the cutoff keeps it, is not trained on. All that follows is.
        """
        (encoded,) = self.pairs.encode([(pair.prompt, pair.response)])
        ids = encoded.input_ids.tolist()
        num_untrained = len(ids) - int(encoded.loss_mask.sum())
        begin = self.pairs.num_opening(ids)
        end = len(ids) - self.pairs.num_closing(ids)
        origin_ends = (
            (begin, FROM_TOKENIZER),
            (num_untrained, pair.prompt_column),
            (end, pair.response_column),
            (len(ids), FROM_TOKENIZER),
        )
        return ExplainedSequence(
            text=pair.prompt + pair.response,
            input_ids=encoded.input_ids,
            loss_mask=encoded.loss_mask,
            stretches=stretches_of(self._tokenizer.model, ids, origin_ends, num_untrained=num_untrained),
            unused=tuple(pair.unused),
        )

    @cached_property
    def chats(self) -> ChatEncoder:
        """The encoder of lists of messages."""
        train_turns: Turns = "all"
        eos: str | None = None
        if isinstance(self._columns, ChatColumns):
            train_turns, eos = self._columns.train_turns, self._columns.eos
        return ChatEncoder(
            self._tokenizer,
            chat_template=self._columns.chat_template,
            max_tokens=self._cutoff_len,
            cutoff=self._columns.cutoff,
            train_turns=train_turns,
            template_options=self._columns.template_options,
            turn_end=self._columns.turn_end,
            eos=eos,
            ignore=self._columns.ignore,
        )

    @cached_property
    def pairs(self) -> PairEncoder:
        """The encoder of prompts and responses that are text."""
        assert not isinstance(self._columns, ChatColumns)
        eos = self._columns.eos
        if eos is True:
            eos = required_eos(load_tokenizer(self._path), self._path, option_for_none="eos")
        return PairEncoder(self._tokenizer, max_tokens=self._cutoff_len, cutoff=self._columns.cutoff, eos=eos)

    def _chat_item(self, messages: Any, cells: Cells) -> Item:
        """Returns the item of a conversation: its messages, rendered with the row's system text, tools and options."""
        messages = as_messages(messages)
        for role in ("developer", "system"):
            content = cells.get(role)
            if content is None or (isinstance(content, str) and not content.strip()):
                continue
            if not isinstance(content, str) or not isinstance(messages, Sequence):
                raise ValueError(f"the column {role} holds {called(content)}, not text")
            first = messages[0] if messages and isinstance(messages[0], Mapping) else {}
            if first.get("role") != role:
                messages = [{"role": role, "content": content}, *messages]
            elif first.get("content") != content:
                raise ValueError(f"the column {role} and the first message, of the {role}, differ; keep one of them")
        options = parsed_cell("chat_template_kwargs", cells.get("chat_template_kwargs"))
        if options is not None and not isinstance(options, Mapping):
            raise ValueError(
                f"chat_template_kwargs is {called(options)}; it is an object, such as {{'thinking': true}}"
            )
        return self.chats.render(messages, parsed_cell("tools", cells.get("tools")) or None, options=options)

    def _answer_item(self, prompt: Any, response: Any, cells: Cells, kind: str) -> Item:
        """Returns the item of a prompt and one response; both are text, or both are lists of messages.

        `kind` is the kind of the response's cell: "response", "chosen" or "rejected".
        """
        assert not isinstance(self._columns, ChatColumns)
        if isinstance(prompt, str) and isinstance(response, str):
            if self._columns.is_templated:
                raise ValueError(
                    "the prompt is text, but "
                    + parameter("chat_template")
                    + ", "
                    + parameter("template_options")
                    + ", "
                    + parameter("turn_end")
                    + " and "
                    + parameter("tools_column")
                    + " are for lists of messages; leave them out"
                )
            _ = self.pairs  # fails here if nothing ends a sequence
            prompt, response = check_pair(prompt, response)
            unused = [f"column {name}" for name in _STANDARD if cells.get(name)]
            return _TextPair(
                prompt, response, self._required_columns.get("prompt", "prompt"), self._required_columns[kind], unused
            )
        if not (isinstance(prompt, list) and isinstance(response, list)):
            name = kind if kind == "response" else f"{kind} answer"
            raise ValueError(
                f"the prompt is {called(prompt)} and the {name} is {called(response)}; both are text, or both lists of "
                "messages"
            )
        if self._columns.eos is not True:
            raise ValueError("the chat template ends the turns of messages; leave out eos")
        return self._chat_item(pair_messages(prompt, response), cells)


def stretches_of(
    model: Any, ids: Sequence[int], origin_ends: Iterable[tuple[int, str]], *, num_untrained: int = 0
) -> tuple[Stretch, ...]:
    """Returns the stretches of a sequence that are not empty.

    Args:
        model: the tokenizer.
        ids: the tokens of the sequence.
        origin_ends: (end, origin) of each stretch, as in [(1, "tokenizer"), (5, "text")]; it begins where the one
            before it ends.
        num_untrained: how many tokens at the beginning are not trained on; all others are.
    """
    stretches: list[Stretch] = []
    first = 0
    for end, origin in origin_ends:
        if first < end:
            text = str(model.decode(ids[first:end], skip_special_tokens=False))
            is_trained = first >= num_untrained
            stretches.append(
                Stretch(first=first, end=end, text=text, is_trained=is_trained, message=None, field=origin)
            )
        first = end
    return tuple(stretches)


def _check_verdict(name: str, value: float) -> None:
    """Refuses a row with a label, or with a weight that differs from the default, because a sequence keeps neither.

    The default is the value of `FLAGS` that says that all is trained on, as True, 1 or 1.0.
    """
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
