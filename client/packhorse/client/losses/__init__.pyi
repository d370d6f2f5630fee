"""The names of `packhorse.client.losses`, each loaded when it is first asked for."""

from .component_metrics import ComponentMetrics as ComponentMetrics
from .component_metrics import per_component_metrics as per_component_metrics
from .loss_weights import LossCounts as LossCounts
from .loss_weights import LossReduction as LossReduction
from .loss_weights import SequenceGroups as SequenceGroups
from .loss_weights import build_loss_weights as build_loss_weights
from .sequence_sums import sequence_log_probs as sequence_log_probs
from .sequence_sums import sum_over_sequences as sum_over_sequences
