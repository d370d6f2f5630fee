"""Looking at batches and bins: pictures, and which documents a step trained on.

Owns reading and drawing; nothing here makes a bin or a token. It needs no torch but for token sources.
"""

from packhorse.client.pictures.batch import draw_batch
from packhorse.client.pictures.bins import ExplainedStep, draw_bins, explain_step
from packhorse.client.pictures.picture import Picture

__all__ = ["ExplainedStep", "Picture", "draw_batch", "draw_bins", "explain_step"]
