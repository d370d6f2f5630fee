"""The names of `packhorse.client.batches`, each loaded when it is first asked for."""

from .batch import BatchAssembler as BatchAssembler
from .buffers import BatchBuffers as BatchBuffers
from .buffers import BatchTensors as BatchTensors
from .context_parallel import context_parallel_indices as context_parallel_indices
from .layout import PackLayout as PackLayout
from .layout import as_layout as as_layout
from .packed_batch import PackedBatch as PackedBatch
from .separators import Separators as Separators
