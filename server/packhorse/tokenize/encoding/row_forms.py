"""The three forms of fine-tuning rows: conversations, prompts with responses, and preferences.

Owns which cells make the items of each form, and choosing the form by its columns. Leaves encoding items, and what a
conversation or an answer must be, to `row_encoder`.
"""

from pathlib import Path

from packhorse.sft import ChatTokenizer, NoTargetsError
from packhorse.sft.forms.plain_data import called
from packhorse.sft.pairs import common_messages
from packhorse.tokenize.columns import AnyColumns, ChatColumns, PairColumns, PreferenceColumns
from packhorse.tokenize.encoding.row_encoder import Cells, Item, RowEncoder, parsed_cell


class Chats(RowEncoder):
    """Rows of conversations."""

    def __init__(self, columns: ChatColumns, tokenizer: ChatTokenizer, path: Path, cutoff_len: int | None) -> None:
        super().__init__(columns, tokenizer, path, cutoff_len, form_columns={"messages": columns.messages})
        _ = self.chats  # a wrong template fails before any work

    def _items(self, cells: Cells) -> list[Item]:
        messages = parsed_cell("messages", cells["messages"])
        if not isinstance(messages, list):
            raise ValueError(f"the messages are {called(messages)}, not a list of messages")
        return [self._chat_item(messages, cells)]


class Pairs(RowEncoder):
    """Rows of prompts and responses."""

    def __init__(self, columns: PairColumns, tokenizer: ChatTokenizer, path: Path, cutoff_len: int | None) -> None:
        is_alpaca = columns.prompt == "instruction"  # its rows are instruction, input (often empty) and output
        super().__init__(
            columns,
            tokenizer,
            path,
            cutoff_len,
            form_columns={"prompt": columns.prompt, "response": columns.response},
            form_options=("input",) if is_alpaca else (),
        )

    def _items(self, cells: Cells) -> list[Item]:
        prompt, alpaca_input = cells["prompt"], cells.get("input")
        if isinstance(alpaca_input, str) and alpaca_input.strip() and isinstance(prompt, str):
            prompt = f"{prompt}\n{alpaca_input}"
        return [self._answer_item(prompt, cells["response"], cells, "response")]


class Preferences(RowEncoder):
    """Rows of a chosen and a rejected answer; each is two sequences."""

    def __init__(
        self, columns: PreferenceColumns, tokenizer: ChatTokenizer, path: Path, cutoff_len: int | None
    ) -> None:
        super().__init__(
            columns,
            tokenizer,
            path,
            cutoff_len,
            form_columns={"chosen": columns.chosen, "rejected": columns.rejected, "prompt": columns.prompt},
            form_options=() if columns.prompt else ("prompt",),
        )

    def _items(self, cells: Cells) -> list[Item]:
        """Returns the items of the chosen and of the rejected answer, both with the prompt."""
        assert isinstance(self._columns, PreferenceColumns)
        chosen, rejected, prompt = cells["chosen"], cells["rejected"], cells.get("prompt")
        if chosen == rejected:
            raise NoTargetsError("chosen and rejected are the same answer, which prefers nothing")
        # Whether the chosen answer is a list of messages that begins with the prompt. A prompt of text beside a list
        # is always taken for the text of its first message.
        holds_prompt = isinstance(chosen, list) and (isinstance(prompt, str) or chosen[: len(prompt or ())] == prompt)
        # In a column that the user named, such a prompt is refused. In the standard column it is not used.
        if prompt is not None and holds_prompt and self._columns.prompt is not None:
            raise ValueError("the chosen answer holds its prompt already; name no column of prompts")
        if prompt is None or holds_prompt:
            are_texts = isinstance(chosen, str) and isinstance(rejected, str)
            split = self.pairs.common_prompt if are_texts else common_messages
            prompt, chosen, rejected = split(chosen, rejected)
        return [
            self._answer_item(prompt, chosen, cells, "chosen"),
            self._answer_item(prompt, rejected, cells, "rejected"),
        ]


def row_encoder(columns: AnyColumns, tokenizer: ChatTokenizer, path: Path, cutoff_len: int | None) -> RowEncoder:
    """Returns the encoder for rows of these columns; the arguments are those of `RowEncoder`."""
    if isinstance(columns, ChatColumns):
        return Chats(columns, tokenizer, path, cutoff_len)
    if isinstance(columns, PairColumns):
        return Pairs(columns, tokenizer, path, cutoff_len)
    return Preferences(columns, tokenizer, path, cutoff_len)
