"""Looking at batches and bins: pictures, and which documents a step trained on.

Nothing here makes a bin or a token. Only token sources need torch.
"""

from packhorse.pictures.bins import ExplainedStep, draw_bins, explain_step
from packhorse.pictures.marked import MarkedRange, MarkedSequence
from packhorse.pictures.picture import Picture, draw_batch

__all__ = ["ExplainedStep", "MarkedRange", "MarkedSequence", "Picture", "draw_batch", "draw_bins", "explain_step"]
