"""`TokenizeFlags`: the values of the flags of `packhorse tokenize` about rows and their tokens.

Leaves their help to `commands/tokenize`, and which of them go together to `_flag_checks`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packhorse.sft.chat import TurnEnd
from packhorse.sft.cutting import Cutoff
from packhorse.sft.messages import Turns
from packhorse.tokenize.documents import Split
from packhorse.tokenize.encoding.special_texts import SpecialInText
from packhorse.tokenize.input.skipped import OnBadRow, Undecodable

FORM_COLUMNS = ("messages", "prompt", "response", "chosen", "rejected")
"""The columns that make a form; each has a flag, such as --messages-column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeFlags:
    """Each field is a flag of its name. Without the flag it is None, False or empty, or the default that it shows."""

    tokenizer: Path | None
    vocab_size: int | None
    text_column: str | None
    id_column: str | None
    documents: Split | None
    glob: str | None
    undecodable: Undecodable
    on_bad_row: OnBadRow
    special_in_text: SpecialInText | None
    bos: str | None
    eos: str | None
    no_eos: bool
    messages_column: str | None
    tools_column: str | None
    chat_template: Path | None
    template_options: tuple[str, ...]
    train_turns: Turns | None
    prompt_column: str | None
    response_column: str | None
    chosen_column: str | None
    rejected_column: str | None
    cutoff_len: int | None
    cutoff: Cutoff | None
    turn_end: TurnEnd | None
    strict: bool
    ignore: tuple[str, ...]
    no_targets: Literal["error", "drop"] | None

    @property
    def form_columns(self) -> dict[str, str]:
        """The columns of FORM_COLUMNS that flags or the standard columns name: kind of column → its name."""
        columns = {kind: getattr(self, f"{kind}_column") for kind in FORM_COLUMNS}
        return {kind: name for kind, name in columns.items() if name is not None}

    @property
    def are_for_text(self) -> bool:
        """Whether a flag is given that only plain text has; not --bos, which is refused in words of its own."""
        return any(value is not None for value in (self.text_column, self.id_column, self.documents, self.glob))
