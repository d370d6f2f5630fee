"""Chats to tokens and a loss mask.

Owns the order of the steps; leaves each step to `sft.messages`, `sft.template`, `sft.turns`, `sft.tokenizer` and
`sft.sequence`.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from packhorse.formats import require
from packhorse.sft.messages import (
    TrainedTurns,
    Turns,
    as_messages,
    check_contents,
    check_conversation,
    plain_data,
)
from packhorse.sft.sequence import EncodedSequence, token_ranges, truncate_turns
from packhorse.sft.tokenizer import load_chat_tokenizer

if TYPE_CHECKING:
    from packhorse.sft.turns import RenderedChat


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
        train_on: Collection[str] = ("assistant",),
        train_turns: Turns = "all",
        template_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Reads the tokenizer; the arguments are those of `encode_chat`.

        Raises:
            FileNotFoundError: the tokenizer or the template is not there.
            ImportError: the extra `packhorse[sft]` is not installed.
            ValueError: an option is wrong, or the tokenizer is not one of the known kinds.
        """
        self._wanted = TrainedTurns(roles=train_on, turns=train_turns)
        self._max_tokens = check_max_tokens(max_tokens)
        self._tokenizer = load_chat_tokenizer(tokenizer)
        self._chat_template = self._tokenizer.template(chat_template) if chat_template is not None else None
        self._options = plain_data(dict(template_options or {}), "template_options")

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> "RenderedChat":
        """Renders a conversation and finds the model's turns: the slow half, with the errors of `encode_chat`."""
        chat = check_conversation(as_messages(messages), self._wanted)
        require("jinja2", "sft")
        from packhorse.sft.template import compile_template, with_known_contents
        from packhorse.sft.turns import render_chat

        check_contents(chat.messages)
        template = compile_template(self._chat_template or self._tokenizer.template(None, has_tools=tools is not None))
        named = self._tokenizer.special_tokens
        unknown = template.special_token_names - self._options.keys() if named is None else ()
        if unknown:
            raise ValueError(
                f"the chat template writes {', '.join(sorted(unknown))}, which a tokenizer.json alone does not name; "
                "give the folder that holds it and tokenizer_config.json, or name it in template_options"
            )
        variables = {**(named or {}), **self._options, "tools": _plain_tools(tools)}
        special_texts = {*self._tokenizer.special_texts, *filter(None, [(named or {}).get("eos_token")])}
        chat = with_known_contents(template, chat, variables)
        return render_chat(template, chat, variables, sorted(special_texts, key=len, reverse=True))

    def encode(self, chats: Sequence["RenderedChat"]) -> list[EncodedSequence]:
        """Encodes rendered conversations, also those without a trained token."""
        encodings = self._tokenizer.encode([chat.text for chat in chats])
        return [self._mask(chat, encoding) for chat, encoding in zip(chats, encodings, strict=True)]

    def _mask(self, chat: "RenderedChat", encoding: Any) -> EncodedSequence:
        input_ids = np.array(encoding.ids, dtype=np.int32)
        turns = token_ranges(encoding.offsets, chat.turns)
        loss_mask = np.zeros(len(input_ids), dtype=np.bool_)
        for (first, last), is_trained in zip(turns, chat.is_trained, strict=True):
            loss_mask[first:last] = is_trained
        if self._max_tokens is None or len(input_ids) <= self._max_tokens:
            return EncodedSequence(input_ids=input_ids, loss_mask=loss_mask)
        kept = self._kept(turns, len(input_ids))
        return EncodedSequence(
            input_ids=input_ids[kept], loss_mask=loss_mask[kept], num_cut_tokens=len(input_ids) - int(kept.sum())
        )

    def _kept(self, turns: Sequence[tuple[int, int]], num_tokens: int) -> np.ndarray:
        """Which tokens the cutoff keeps: bool [num_tokens]."""
        # The text after the last turn is a source without a target.
        turns = [*turns, (num_tokens, num_tokens)]
        source_begins = [0, *(last for _, last in turns[:-1])]
        lengths = [(first - begin, last - first) for begin, (first, last) in zip(source_begins, turns, strict=True)]
        assert self._max_tokens is not None
        kept = np.zeros(num_tokens, dtype=np.bool_)
        stay = truncate_turns(lengths, self._max_tokens, last_first=self._wanted.turns == "last")
        for begin, (first, _), (source_len, target_len) in zip(source_begins, turns, stay, strict=True):
            kept[begin : begin + source_len] = True
            kept[first : first + target_len] = True
        return kept


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
) -> EncodedSequence:
    """Encodes a conversation, with a loss mask that trains on the model's own turns.

    The tokens are those of transformers' `apply_chat_template`. A turn is trained on from the end of its header to its
    end-of-turn token, with or without `{% generation %}` blocks (see `packhorse.sft.turns`); a token that straddles
    either edge is trained on too. A message with `train: false` or `weight: 0` is not.

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
        messages: each with role and content, as the template takes them; or with ShareGPT's from and value.
        tokenizer: a fast tokenizer of transformers, a `tokenizers.Tokenizer`, the path of a `tokenizer.json` or of its
            folder, or a `ChatTokenizer`. A path is read at every call: for many conversations give
            `load_chat_tokenizer(path)`.
        chat_template: the text of a Jinja template, a `Path` to one, or the name of one of the tokenizer's; None for
            the tokenizer's own. It runs in Jinja's sandbox.
        tools: JSON schemas of the functions that the template announces.
        max_tokens: length to which `truncate_turns` cuts the sequence; sources and targets keep their first tokens.
            None cuts nothing.
        train_on: the roles that the model plays. `{% generation %}` blocks take precedence.
        train_turns: "all", or "last" for the last message of these roles alone, whose turn is then cut last.
        template_options: further variables of the template, such as `{"enable_thinking": False}`.

    Raises:
        FileNotFoundError: the tokenizer or the template is not there.
        ImportError: the extra `packhorse[sft]` is not installed.
        NoTargetsError: no token is trained on, or none is left.
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
    )
    (encoded,) = encoder.encode([encoder.render(messages, tools)])
    encoded.check_targets()
    return encoded


def check_max_tokens(max_tokens: int | None) -> int | None:
    """Returns a cutoff; a ValueError where it is below 2, since no token could follow another."""
    if max_tokens is not None and max_tokens < 2:
        raise ValueError(f"max_tokens is {max_tokens}; a sequence to train on has at least 2 tokens")
    return max_tokens


def _plain_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[Any] | None:
    if tools is None:
        return None
    if isinstance(tools, str | Mapping) or not all(isinstance(tool, Mapping) for tool in tools):
        raise ValueError(
            "tools must be a list of JSON schemas; transformers.utils.get_json_schema makes one of a Python function"
        )
    return [plain_data(tool, f"tool {number}") for number, tool in enumerate(tools)]
