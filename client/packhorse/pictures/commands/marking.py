"""`marker`: reads sequences of a token file by id, and marks their trained tokens.

Leaves finding the row that a sequence was made of to `packhorse.tokenize`, and printing to `marked_output`.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from packhorse.client import DatasetInfo, TokenSource
from packhorse.parameters import message_of
from packhorse.pictures import MarkedSequence
from packhorse.pictures.beginnings import Decode
from packhorse.pictures.commands.marked_output import marked_of


def marker(
    source: TokenSource | None, decode: Decode | None, tokens: str | None, info: DatasetInfo
) -> Callable[[int], MarkedSequence] | None:
    """Returns a function that reads a sequence by id and marks its trained tokens.

    Args:
        source: reads the path `tokens`, and its mask beside it, if there is one.
        decode: turns tokens into text.
        tokens: path of the token file, beside which the origins of its rows are found.
        info: the dataset.

    Returns:
        The function; None without tokens or a tokenizer, and for mixtures.

    Raises:
        TokenSourceError: the source does not know the dataset's ids. The function raises one if only half of a mask is
            there, or permissions hide whether one is.
    """
    if source is None or decode is None or tokens is None or info.components:
        return None
    loss_mask_beside = cache(source.loss_mask_beside)  # looked for when the first sequence is marked
    of_ids = source.for_ids(info.id_column or "")

    def mark(sequence_id: int) -> MarkedSequence:
        """Reads a sequence; its origins are shown only if its row still gives the same tokens."""
        ids, title, note = of_ids.read(sequence_id), f"sequence {sequence_id}", ""
        mask = loss_mask_beside()
        if mask is not None:  # of chats or pairs: the id is the sequence's number, by which its row is found
            try:
                from packhorse.tokenize import trace_sequence  # its packages may be missing: a note then says so

                traced = trace_sequence(tokens, sequence_id)
            except (ImportError, OSError, ValueError) as error:
                traced, note = None, f"the origin is not known: {message_of(error)}"
            if traced is not None:
                if traced.explained.input_ids.tolist() == ids.tolist():
                    return marked_of(f"{title}, from {traced.origin}", traced.explained)
                note = f"the origin is not known: {traced.origin} gives other tokens now"
        trained = None if mask is None else mask.read(sequence_id)
        shown = MarkedSequence.of_tokens(title, ids, trained, decode)
        return replace(shown, notes=(note,)) if note else shown

    return mark
