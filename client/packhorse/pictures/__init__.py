"""Looking at batches, bins and sequences: pictures of rows, documents of a step, text with trained tokens marked.

Bins and tokens come from `packhorse.client`. Torch is needed only with a token source.
"""

from packhorse.pictures.bins import ExplainedStep, draw_bins, explain_step
from packhorse.pictures.marked import MarkedRange, MarkedSequence
from packhorse.pictures.picture import Picture, draw_batch

__all__ = ["ExplainedStep", "MarkedRange", "MarkedSequence", "Picture", "draw_batch", "draw_bins", "explain_step"]
