"""`ChatEncoder` and `encode_chat`: from conversations to tokens and a loss mask.

Owns the order of the steps, and the loss mask. Leaves checking messages to `sft.messages`, text and turns to
`sft.rendering`, tokens to `sft.tokenizer`, what a cutoff removes to `sft.cutting`, and pairs of texts to `sft.pairs`.
"""

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from packhorse.formats import require
from packhorse.parameters import parameter
from packhorse.sft.cutting import Cutoff, check_max_tokens, with_shorter_text, without_oldest
from packhorse.sft.explained import ExplainedSequence, stretches_of
from packhorse.sft.forms.plain_data import json_fault, plain_data
from packhorse.sft.forms.sharegpt import as_messages
from packhorse.sft.messages import TrainedTurns, Turns, check_contents, check_conversation
from packhorse.sft.sequence import EncodedSequence, token_ranges
from packhorse.sft.tokenizer_loading import load_chat_tokenizer

if TYPE_CHECKING:
    from packhorse.sft.rendering import RenderedChat

TurnEnd = Literal["template", "next"]
"""What may end a turn: "template" for a mark in it; "next" also for the mark with which the next message begins."""

_NUM_SHOWN_DROPPED, _NUM_SHOWN_OF_TURN = 9, 30
"""Characters that an error shows: of those that the tokenizer drops, and at the end of a turn that has no end."""


class ChatEncoder:
    """Encodes conversations, with a fixed tokenizer, template and choice of trained turns.

    Example:
        >>> from tokenizers import Tokenizer, models, pre_tokenizers
        >>> tokenizer = Tokenizer(models.WordLevel({"?": 0, "user": 1, "assistant": 2, "end": 3}, unk_token="?"))
        >>> tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        >>> template = "{% for m in messages %}{{ m.role }} {{ m.content }} end {% endfor %}"
        >>> encoder = ChatEncoder(tokenizer, chat_template=template)
        >>> chat = encoder.render([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}])
        >>> [encoded] = encoder.encode([chat])
        >>> encoded.loss_mask.tolist()
        [False, False, False, False, True, True]
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        chat_template: str | os.PathLike[str] | None = None,
        max_tokens: int | None = None,
        cutoff: Cutoff = "oldest",
        train_on: Collection[str] = ("assistant",),
        train_turns: Turns = "all",
        template_options: Mapping[str, Any] | None = None,
        turn_end: TurnEnd = "template",
        eos: str | None = None,
        ignore: Collection[str] = (),
    ) -> None:
        """Reads the tokenizer; the arguments are those of `encode_chat`, and `cutoff`, see `Cutoff`.

        Raises:
            FileNotFoundError: the tokenizer or the template is not there.
            ImportError: the extra `packhorse[sft]` is not installed.
            ValueError: an option is wrong, or the tokenizer is not one of the known kinds.
        """
        for name, value, choices in (("cutoff", cutoff, Cutoff), ("turn_end", turn_end, TurnEnd)):
            if value not in get_args(choices):
                raise ValueError(f"{name} is {value!r}; choose one of {', '.join(get_args(choices))}")
        self._trained_turns = TrainedTurns(roles=train_on, turns=train_turns)
        self._max_tokens = check_max_tokens(max_tokens)
        self._cutoff = cutoff
        self._tokenizer = load_chat_tokenizer(tokenizer)
        self._chat_template = self._tokenizer.template(chat_template) if chat_template is not None else None
        self._options = plain_data(dict(template_options or {}), "template_options")
        self._turn_end = turn_end
        self._marks = self._tokenizer.marks
        self._eos = None if eos is None else self._tokenizer.eos_id(eos)
        self._ignored = frozenset(field.removeprefix("messages.") for field in ignore)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        options: Mapping[str, Any] | None = None,
    ) -> "RenderedChat":
        """Renders a conversation and finds the model's turns; raises what `encode_chat` raises.

        This takes most of the time of encoding. `options` are variables of the template for this conversation only.
        """
        require("jinja2", "sft")
        from packhorse.sft.rendering import render_chat
        from packhorse.sft.template import compile_template

        tools = _plain_tools(tools)
        template = compile_template(self._chat_template or self._tokenizer.template(None, has_tools=bool(tools)))
        chat = check_conversation(as_messages(messages), self._trained_turns, self._ignored | template.words)
        check_contents(chat.messages)
        special_tokens = self._tokenizer.special_tokens
        given = {**self._options, **plain_data(dict(options or {}), "template options")}
        unknown = template.special_token_names - given.keys() if special_tokens is None else ()
        if unknown:
            raise ValueError(
                f"the chat template writes {', '.join(sorted(unknown))}, which a tokenizer.json alone does "
                "not name; give the folder that holds it and tokenizer_config.json, or name it in "
                + parameter("template_options")
            )
        variables = {**(special_tokens or {}), **given, "tools": tools}
        rendered = render_chat(template, chat, variables, self._marks, self._turn_end)
        if dropped := self._tokenizer.dropped_in(rendered.text):
            shown = ", ".join(map(repr, dict.fromkeys(dropped[:_NUM_SHOWN_DROPPED])))
            raise ValueError(
                f"the tokenizer does not know {shown} and leaves them out, so that nothing says where the "
                "tokens of an answer are; take them out, or use a tokenizer that has a token for what it does not know"
            )
        # An option of the conversation is a field of the row's `chat_template_kwargs`; each counts as one value lost.
        unread = {f"chat_template_kwargs.{name}": 1 for name in options or () if name not in template.words}
        unread |= {f"template option {name}": 1 for name in self._options if name not in template.words}
        return replace(rendered, unused={**rendered.unused, **unread}) if unread else rendered

    def encode(self, chats: Sequence["RenderedChat"]) -> list[EncodedSequence]:
        """Encodes rendered conversations; does not refuse one that has no trained token or is too long."""
        encodings = self._tokenizer.encode([chat.text for chat in chats])
        fitted = [self._cut_to_fit(chat, encoding) for chat, encoding in zip(chats, encodings, strict=True)]
        return [encoded for encoded, _, _ in fitted]

    def explain(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        options: Mapping[str, Any] | None = None,
    ) -> ExplainedSequence:
        """Encodes a conversation, and says where each of its tokens comes from; the arguments are those of `render`."""
        return self.explain_rendered(self.render(messages, tools, options=options))

    def explain_rendered(self, chat: "RenderedChat") -> ExplainedSequence:
        """Encodes a rendered conversation, and says where each of its tokens comes from."""
        encoded, chat, encoding = self._cut_to_fit(chat, *self._tokenizer.encode([chat.text]))
        return ExplainedSequence(
            text=chat.text,
            input_ids=encoded.input_ids,
            loss_mask=encoded.loss_mask,
            stretches=stretches_of(chat.text, encoding.offsets, encoded.loss_mask, chat.origins()),
            unused=tuple(chat.unused),
        )

    def _cut_to_fit(self, chat: "RenderedChat", encoding: Any) -> "tuple[EncodedSequence, RenderedChat, Any]":
        """Returns a sequence, cut if it is too long, with the rendering and the encoding that it was made from."""
        encoded = self._encoded(chat, encoding)
        num_tokens = len(encoded)
        if self._max_tokens is None or num_tokens <= self._max_tokens:
            return encoded, chat, encoding
        while len(encoded) > self._max_tokens and self._cutoff == "oldest":
            shorter = without_oldest(chat.conversation) or with_shorter_text(
                chat.conversation, len(encoded) - self._max_tokens, self._tokenizer.num_tokens
            )
            if shorter is None:
                break
            try:
                chat = chat.again(shorter)
            except ValueError:  # the template refuses the rest, such as a tool's result whose call is gone
                break
            (encoding,) = self._tokenizer.encode([chat.text])
            encoded = self._encoded(chat, encoding)
        num_cut = num_tokens - len(encoded)
        too_long = len(encoded) > self._max_tokens
        return replace(encoded, num_cut_tokens=num_cut, is_too_long=too_long), chat, encoding

    def _encoded(self, chat: "RenderedChat", encoding: Any) -> EncodedSequence:
        """Returns the tokens with a mask that is True on trained turns; adds `eos` if the last turn has no end."""
        ids = encoding.ids  # a new list at each access
        turns = token_ranges(encoding.offsets, [(turn.begin, turn.end) for turn in chat.turns])
        last = chat.turns[-1] if chat.ends_with_turn else None
        gets_eos = self._eos is not None and last is not None and last.is_open
        if gets_eos:
            ids.append(self._eos)
        loss_mask = np.zeros(len(ids), dtype=np.bool_)
        for (first, end), turn in zip(turns, chat.turns, strict=True):
            loss_mask[first:end] = turn.is_trained
        if gets_eos:
            assert last is not None
            loss_mask[-1] = last.is_trained
        without_eos = chat.turns[:-1] if gets_eos else chat.turns
        unended = [chat.text[turn.begin : turn.end] for turn in without_eos if turn.is_open and turn.is_trained]
        return EncodedSequence(
            input_ids=np.array(ids, dtype=np.int32),
            loss_mask=loss_mask,
            num_open_turns=len(unended),
            open_turn=unended[0][-_NUM_SHOWN_OF_TURN:] if unended else "",
        )


def encode_chat(
    messages: Sequence[Mapping[str, Any]],
    tokenizer: Any,
    *,
    chat_template: str | os.PathLike[str] | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    max_tokens: int | None = None,
    train_on: Collection[str] = ("assistant",),
    train_turns: Turns = "all",
    template_options: Mapping[str, Any] | None = None,
    turn_end: TurnEnd = "template",
    eos: str | None = None,
    ignore: Collection[str] = (),
) -> EncodedSequence:
    """Encodes a conversation, with a loss mask that trains on the model's own turns.

    The tokens are those of transformers' `apply_chat_template`. A turn is trained on from the end of its header to its
    end-of-turn token, with or without `{% generation %}` blocks (see `packhorse.sft.turns`); a token that straddles
    either edge is trained on too. A message with `train: false`, `weight: 0` or another of `messages.FLAGS` is not.

    Example:
        >>> from tokenizers import Tokenizer, models, pre_tokenizers
        >>> words = {"?": 0, "user": 1, "assistant": 2, "hi": 3, "end": 4}
        >>> tokenizer = Tokenizer(models.WordLevel(words, unk_token="?"))
        >>> tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        >>> template = "{% for m in messages %}{{ m.role }} {{ m.content }} end {% endfor %}"
        >>> chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hi"}]
        >>> encoded = encode_chat(chat, tokenizer, chat_template=template)
        >>> encoded.input_ids.tolist(), encoded.loss_mask.tolist()
        ([1, 3, 4, 2, 3, 4], [False, False, False, False, True, True])

    Args:
        messages: the messages, each with role and content as the template takes them, or with ShareGPT's from and
            value.
        tokenizer: a fast tokenizer of transformers, a `tokenizers.Tokenizer`, the path of a `tokenizer.json` or of its
            folder, or a `ChatTokenizer`. A path is read at every call: for many conversations give
            `load_chat_tokenizer(path)`.
        chat_template: the text of a Jinja template, a `Path` to one, or the name of one of the tokenizer's; None for
            the tokenizer's own. It runs in Jinja's sandbox.
        tools: JSON schemas of the functions that the template announces.
        max_tokens: most tokens of the sequence. A longer one loses its oldest exchanges, then the beginning of its
            longest text that is not the model's. Answers, headers and what the system says stay whole. None for no
            limit.
        train_on: the roles that the model plays. `{% generation %}` blocks take precedence.
        train_turns: "all", or "last" for only the last message of these roles.
        template_options: further variables of the template, such as `{"enable_thinking": False}`.
        turn_end: "template", or "next" if the mark with which the next message begins ends a turn that has no end of
            its own; it is then trained on.
        eos: text of a token that ends the sequence if its last turn has no end; None for none.
        ignore: keys of messages that are known to say nothing about training, such as a boolean that is not a flag.

    Raises:
        FileNotFoundError: the tokenizer or the template is not there.
        ImportError: the extra `packhorse[sft]` is not installed.
        NoTargetsError: no token is trained on, or the sequence does not fit `max_tokens` without cutting an answer.
        ValueError: an argument is wrong, the template does not render the conversation, or does not show where a turn
            is; the message says what to do.
    """
    encoder = ChatEncoder(
        tokenizer,
        chat_template=chat_template,
        max_tokens=max_tokens,
        train_on=train_on,
        train_turns=train_turns,
        template_options=template_options,
        turn_end=turn_end,
        eos=eos,
        ignore=ignore,
    )
    (encoded,) = encoder.encode([encoder.render(messages, tools)])
    encoded.check_targets()
    return encoded


def _plain_tools(tools: Any) -> list[Any] | None:
    """Checks tools, which may be JSON texts, and copies them as plain data."""
    if tools is None:
        return None
    if isinstance(tools, list) and all(isinstance(tool, str) for tool in tools):
        try:
            tools = [json.loads(tool) for tool in tools]
        except json.JSONDecodeError as error:
            raise ValueError(f"a tool is text that is not JSON: {json_fault(error)}") from None
    if isinstance(tools, str | Mapping) or not all(isinstance(tool, Mapping) for tool in tools):
        raise ValueError(
            "tools must be a list of JSON schemas; transformers.utils.get_json_schema makes one of a Python function"
        )
    return [plain_data(tool, f"tool {number}") for number, tool in enumerate(tools)]
