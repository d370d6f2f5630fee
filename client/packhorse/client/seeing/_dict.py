"""`SeenDict`: a batch that shows itself.

Owns what a notebook and a log see of a batch; leaves what is in it to whoever fills it.
"""

from typing import Any

from packhorse.client.seeing.batch import draw_batch, summarize
from packhorse.client.seeing.picture import Picture


class SeenDict(dict[str, Any]):
    """A dict of a batch's keys, with a summary for `print` and a picture for notebooks."""

    def show(self) -> Picture:
        """Returns the batch's picture; see `draw_batch`."""
        return draw_batch(self)

    def __repr__(self) -> str:
        return summarize(self)

    def _repr_html_(self) -> str | None:
        return self.show().html() if "layout" in self else None  # a preset's keys: the summary is shown
