"""The numbers by which messages name the templates of their bins.

Owns which templates the client of a stream knows, and which ones a message defines. Leaves the messages to `messages`.

Shape letters: N bins, M bins that define a template.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.epoch import Bins
from packhorse.wire import KEPT_TEMPLATES

_FEW_BINS = 32
"""Up to this many bins are numbered one by one, without arrays."""


class NumberedTemplates(NamedTuple):
    """The templates of some bins by their numbers on the wire."""

    numbers: NDArray[np.int64]
    """Number of each bin's template on the wire: int64 [N]."""
    defining: NDArray[np.int64]
    """Indices of bins, one for each template that the client does not know, by ascending number: int64 [M]."""


class SentTemplates:
    """Which templates the client of a stream knows by now.

    A client remembers only templates below KEPT_TEMPLATES. Other templates, and bins without one, get numbers from
    KEPT_TEMPLATES on, which hold for one message.
    """

    def __init__(self) -> None:
        self._is_known = bytearray(1)  # a byte for each template, and a last one, always 0, for template -1: none

    def numbered(self, bins: Bins) -> NumberedTemplates:
        """Numbers the bins' templates, for a message that defines those that the client does not know yet."""
        templates = bins.templates if bins.templates is not None else np.full(len(bins), -1, dtype=np.int64)
        if len(templates) <= _FEW_BINS:
            return self._numbered_few(templates)
        unknown = self._unknown(templates)
        if not len(unknown):
            return NumberedTemplates(templates, unknown)
        is_kept = (templates[unknown] >= 0) & (templates[unknown] < KEPT_TEMPLATES)
        kept, others = unknown[is_kept], unknown[~is_kept]
        numbers = templates.copy() if len(others) else templates
        numbers[others] = KEPT_TEMPLATES + np.arange(len(others))
        new, first_uses = np.unique(templates[kept], return_index=True)
        self._make_room(int(new.max(initial=-1)))
        np.frombuffer(self._is_known, dtype=np.bool_)[new] = True
        return NumberedTemplates(numbers, np.concatenate((kept[first_uses], others)))

    def _numbered_few(self, templates: NDArray[np.int64]) -> NumberedTemplates:
        """Returns the same as `numbered`, bin by bin: each operation on an array costs more than a few bins do."""
        numbers = templates.tolist()
        self._make_room(max((each for each in numbers if each < KEPT_TEMPLATES), default=-1))
        unknown: dict[int, int] = {}
        others: list[int] = []
        for index, template in enumerate(numbers):
            if not 0 <= template < KEPT_TEMPLATES:
                numbers[index] = KEPT_TEMPLATES + len(others)
                others.append(index)
            elif not self._is_known[template]:
                unknown.setdefault(template, index)
        for template in unknown:
            self._is_known[template] = True
        defining = [unknown[template] for template in sorted(unknown)] + others
        return NumberedTemplates(np.array(numbers, dtype=np.int64), np.array(defining, dtype=np.int64))

    def _make_room(self, template: int) -> None:
        """Makes room for templates up to `template`, inclusive, and for the last byte; new bytes are 0."""
        self._is_known.extend(bytes(max(0, template + 2 - len(self._is_known))))

    def _unknown(self, templates: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the indices of bins whose template the client does not know, or that have none: int64 [M]."""
        is_known = np.frombuffer(self._is_known, dtype=np.bool_)
        try:
            known = is_known.take(templates)  # -1 takes the last byte, which is 0
        except IndexError:  # a template beyond the bytes takes the last one too, and so does -1: as uint64 it is huge
            last = np.uint64(len(is_known) - 1)
            known = is_known.take(np.minimum(templates.view(np.uint64), last).view(np.int64))
        return np.flatnonzero(~known)
