"""What the rows of fine-tuning hold: conversations, prompts and responses, or preferences.

Owns which columns each form has; leaves reading and encoding them to `_row_encoders`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packhorse.sft.messages import Turns


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateColumns:
    """What rows of messages need, whatever else they hold."""

    tools: str | None = None
    """Column of the tools that a conversation may call: a list of JSON schemas, or its JSON text."""
    chat_template: Path | None = None
    """File with the template; None for the tokenizer's own."""
    template_options: Mapping[str, Any] = field(default_factory=dict)
    """What else the template sees, such as `{"enable_thinking": False}`."""

    @property
    def is_templated(self) -> bool:
        """Whether something is given that only rows of messages have."""
        return bool(self.tools or self.chat_template or self.template_options)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatColumns(TemplateColumns):
    """Rows that hold conversations."""

    messages: str = "messages"
    """Column of the messages: a list, or its JSON text; ShareGPT's form is known too."""
    train_turns: Turns = "all"
    """All turns of the assistant are trained on, or the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairColumns(TemplateColumns):
    """Rows that hold a prompt and a response: both of them text, or both lists of messages."""

    prompt: str
    """Column of the prompt."""
    response: str
    """Column of the response, which alone is trained on."""
    eos: bool | str = True
    """Whether the end-of-sequence token follows a response that is text: the tokenizer's own, or the one named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceColumns(TemplateColumns):
    """Rows that hold a chosen and a rejected answer to one prompt: text, or lists of messages.

    Each row becomes two sequences with the prompt in both, the chosen one first: groups of two.
    """

    prompt: str | None = None
    """Column of the prompt; None where both answers begin with it."""
    chosen: str = "chosen"
    """Column of the better answer."""
    rejected: str = "rejected"
    """Column of the other."""
    eos: bool | str = True
    """As in `PairColumns`."""


AnyColumns = ChatColumns | PairColumns | PreferenceColumns
