"""Looking at batches, bins and sequences: pictures of rows, documents of a step, text with trained tokens marked.

Bins and tokens come from `packhorse.client`. Torch is needed only with a token source.
"""

from packhorse.pictures.batches import draw_batch
from packhorse.pictures.bins import draw_bins
from packhorse.pictures.explained_step import ExplainedStep, explain_step
from packhorse.pictures.marked import MarkedRange, MarkedSequence
from packhorse.pictures.picture import Picture

__all__ = ["ExplainedStep", "MarkedRange", "MarkedSequence", "Picture", "draw_batch", "draw_bins", "explain_step"]
