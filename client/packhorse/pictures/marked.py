"""A sequence as text with its trained tokens marked, for terminals, files and notebooks.

Owns the marks, and cutting tokens into ranges by their mask. Leaves the origins of text to `packhorse.sft`, and
pictures of bins to `pictures/bins`.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from html import escape
from itertools import groupby, pairwise

import numpy as np
from numpy.typing import NDArray

_MOST_SHOWN = 60
"""Characters of a range that the table shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedRange:
    """Consecutive tokens that are all trained on, or all not."""

    text: str
    """The text of the tokens."""
    num_tokens: int
    """Number of tokens."""
    is_trained: bool
    """Whether the model is trained to predict them."""
    origin: str = ""
    """The part of the row from which they come, such as `messages[1].content`; empty for the template's own text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedSequence:
    """A sequence, cut into ranges that are trained on or not; a notebook shows trained ranges in colour.

    Example:
        >>> answer = MarkedRange(text="4", num_tokens=1, is_trained=True, origin="messages[1].content")
        >>> question = MarkedRange(text="2 + 2 = ", num_tokens=4, is_trained=False)
        >>> print(MarkedSequence(title="row 0", ranges=(question, answer)).text())
        row 0: 5 tokens, 1 trained
        2 + 2 = [[4]]
        <BLANKLINE>
          trained  tokens  origin               text
          no            4  template             '2 + 2 = '
          yes           1  messages[1].content  '4'
    """

    title: str
    """Name of the sequence, such as "row 0"."""
    ranges: tuple[MarkedRange, ...]
    """The ranges, in order."""
    notes: tuple[str, ...] = ()
    """Further sentences about the row, such as fields that are not in the text."""

    @classmethod
    def of_tokens(
        cls,
        title: str,
        tokens: NDArray[np.integer],
        mask: NDArray[np.integer] | None,
        decode: Callable[[list[int]], str],
    ) -> "MarkedSequence":
        """Makes a sequence from tokens, cut into ranges where their mask changes.

        Args:
            title: name of the sequence.
            tokens: integers [n].
            mask: 1 where a token is trained on: integers [n]; None if all are.
            decode: function from token ids to text.
        """
        is_trained = np.ones(len(tokens), np.bool_) if mask is None else np.asarray(mask, dtype=np.bool_)
        changes = np.flatnonzero(is_trained[1:] != is_trained[:-1]) + 1  # [no, no, yes] -> [2]
        cuts = [0, *changes.tolist(), len(tokens)]
        ranges = [
            MarkedRange(
                text=decode(tokens[begin:end].tolist()), num_tokens=end - begin, is_trained=bool(is_trained[begin])
            )
            for begin, end in pairwise(cuts)
            if end > begin  # else there are no tokens at all
        ]
        return cls(title=title, ranges=tuple(ranges))

    @property
    def heading(self) -> str:
        """The title, with the numbers of all tokens and of trained tokens."""
        num_tokens = sum(marked.num_tokens for marked in self.ranges)
        num_trained = sum(marked.num_tokens for marked in self.ranges if marked.is_trained)
        return f"{self.title}: {num_tokens:,} tokens, {num_trained:,} trained"

    def runs(self) -> list[tuple[str, bool]]:
        """Returns (text, whether it is trained on) for each run of ranges that are all trained on, or all not."""
        runs = groupby(self.ranges, key=lambda marked: marked.is_trained)
        return [("".join(marked.text for marked in ranges), is_trained) for is_trained, ranges in runs]

    def text(self) -> str:
        """Returns the sequence for a plain terminal or a file: trained text in [[ ]], then a table of origins."""
        body = "".join(f"[[{text}]]" if is_trained else text for text, is_trained in self.runs())
        return "\n".join([self.heading, body, *self.notes, "", *self.table()])

    def table(self) -> list[str]:
        """Returns a table as lines: whether each range is trained on, its tokens, origin and first characters."""
        has_origins = any(marked.origin for marked in self.ranges)
        without_origin = "template" if has_origins else "-"  # if no range has one, the sequence is of no template
        origins = [marked.origin or without_origin for marked in self.ranges]
        width = max(map(len, ["origin", *origins]))
        lines = [f"  trained  tokens  {'origin':{width}}  text"]
        for marked, origin in zip(self.ranges, origins, strict=True):
            shown = marked.text if len(marked.text) <= _MOST_SHOWN else f"{marked.text[:_MOST_SHOWN]}…"
            is_trained = "yes" if marked.is_trained else "no"
            lines.append(f"  {is_trained:7}  {marked.num_tokens:6,}  {origin:{width}}  {shown!r}")
        return lines

    def _repr_html_(self) -> str:
        """Returns HTML for a notebook."""
        spans = "".join(
            f'<span title="{escape(marked.origin or "template")}"'
            + (' style="background:#c6efce;color:#0b3d17"' if marked.is_trained else "")
            + f">{escape(marked.text)}</span>"
            for marked in self.ranges
        )
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        return f"<p>{escape(self.heading)}</p><pre style='white-space:pre-wrap'>{spans}</pre>{notes}"

    def facts(self) -> dict[str, object]:
        """Returns the sequence as JSON values."""
        return {"title": self.title, "ranges": list(map(asdict, self.ranges)), "notes": list(self.notes)}
