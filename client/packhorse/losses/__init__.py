"""Losses: weights of tokens, and sums and metrics by sequence and by component."""

from packhorse.losses.components import ComponentMetrics, per_component_metrics
from packhorse.losses.counts import LossCounts
from packhorse.losses.groups import SequenceGroups
from packhorse.losses.log_probs import sequence_log_probs, trained_log_probs
from packhorse.losses.loss_weights import LossReduction, build_loss_weights
from packhorse.losses.sums import sum_over_sequences

__all__ = [
    "ComponentMetrics",
    "LossCounts",
    "LossReduction",
    "SequenceGroups",
    "build_loss_weights",
    "per_component_metrics",
    "sequence_log_probs",
    "sum_over_sequences",
    "trained_log_probs",
]
