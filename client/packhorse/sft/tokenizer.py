"""`ChatTokenizer`: a tokenizer that is ready to encode chats, with its special tokens and its chat templates.

Owns encoding text with offsets, and choosing a template and the token that ends a sequence. Leaves making one of a
user's tokenizer to `sft.tokenizer_loading`, and rendering templates to `sft.template`.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packhorse.parameters import parameter
from packhorse.sft.dropped_characters import dropped_characters
from packhorse.storage import read_text


@dataclass(frozen=True, slots=True)
class Marks:
    """Texts of a tokenizer's added tokens, by which turns are found; longest first."""

    special: tuple[str, ...]
    """Texts of the added tokens that may end a turn."""
    added: tuple[str, ...]
    """Texts of all added tokens."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChatTokenizer:
    """A tokenizer for chats. Make one with `load_chat_tokenizer`; it pickles.

    Example:
        >>> from tokenizers import Tokenizer, models
        >>> from packhorse.sft import load_chat_tokenizer
        >>> tokenizer = load_chat_tokenizer(Tokenizer(models.WordLevel({"hi": 0, "<eos>": 1}, unk_token="hi")))
        >>> tokenizer.eos_id("<eos>")
        1
    """

    model: Any
    """A `tokenizers.Tokenizer` that does not truncate, pad or add tokens; its offsets include white space."""
    opening: tuple[int, ...]
    """Ids that the tokenizer adds before a text, such as BOS."""
    closing: tuple[int, ...]
    """Ids that the tokenizer adds after a text, such as EOS."""
    special_texts: tuple[str, ...]
    """Texts of the special tokens."""
    added_texts: tuple[str, ...] = ()
    """Texts of all added tokens, which the tokenizer finds before it splits a text."""
    known: frozenset[str] | None = None
    """The characters that the tokenizer knows, if it drops others; None if every character becomes tokens."""
    special_tokens: Mapping[str, str] | None = None
    """Name in templates ("eos_token") → text; None if unknown."""
    chat_templates: Mapping[str, str] | None = None
    """Name ("default", "tool_use") → template; None if it has none."""

    @property
    def marks(self) -> Marks:
        """The added tokens, for the search for turns."""
        special = set(self.special_texts)
        if eos := (self.special_tokens or {}).get("eos_token"):  # which need not be an added token
            special.add(eos)
        added = special | {text for text in self.added_texts if text.strip()}
        return Marks(
            special=tuple(sorted(special, key=len, reverse=True)), added=tuple(sorted(added, key=len, reverse=True))
        )

    def dropped_in(self, text: str) -> list[str]:
        """Returns the characters of a text, except white space, that the tokenizer drops."""
        return [] if self.known is None else dropped_characters(self.model, self.known, text)

    def num_tokens(self, text: str) -> int:
        """Returns how many tokens a text has by itself."""
        return len(self.encode([text])[0].ids)

    def encode(self, texts: Sequence[str]) -> list[Any]:
        """Encodes texts without adding tokens: a `tokenizers.Encoding` each, with `ids` and `offsets` in characters."""
        encodings: list[Any] = self.model.encode_batch(list(texts), add_special_tokens=False)
        return encodings

    def template(self, chosen: str | os.PathLike[str] | None, *, has_tools: bool = False) -> str:
        """Returns the text of a chat template.

        Args:
            chosen: the text of a template, a `Path` to one, or the name of one of the tokenizer's; None for "tool_use"
                if there are tools and such a template, else "default".
            has_tools: whether the conversation has tools.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: None was given, and the tokenizer has no default.
        """
        if isinstance(chosen, os.PathLike):
            return read_text(chosen)
        own = self.chat_templates or {}
        if chosen is not None:
            return own.get(chosen, chosen)
        name = "tool_use" if has_tools and "tool_use" in own else "default"
        if name not in own:
            there = f"only templates named {', '.join(own)}; choose one" if own else "no chat template; give one"
            raise ValueError(f"the tokenizer has {there} with " + parameter("chat_template"))
        return own[name]

    def eos_id(self, eos: str | None) -> int:
        """Returns the id of the end-of-sequence token `eos`, or of the tokenizer's own for None.

        Raises:
            ValueError: `eos` is not a token, or it is None and the tokenizer does not say which token is its own.
        """
        if eos is None:
            if self.special_tokens is not None and "eos_token" in self.special_tokens:
                eos = self.special_tokens["eos_token"]
            elif self.closing:
                return self.closing[-1]  # the last token after every text
            else:
                raise ValueError(
                    "the tokenizer does not say which token ends a sequence; name it with eos=, or append no such token"
                )
        number: int | None = self.model.token_to_id(eos)
        if number is None:
            raise ValueError(f"eos {eos!r} is not a token of the tokenizer; name one that is, or append no such token")
        return number
