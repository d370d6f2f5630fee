"""The names of `packhorse.client.batches`, each loaded when it is first asked for."""

from .batch import BatchAssembler as BatchAssembler
from .context_parallel import ContextBatch as ContextBatch
from .context_parallel import ContextCounts as ContextCounts
from .context_parallel import context_batch as context_batch
from .context_parallel import context_batches as context_batches
from .context_parallel import context_parallel_indices as context_parallel_indices
from .context_parallel import context_process_groups as context_process_groups
from .layout import PackLayout as PackLayout
from .layout import as_layout as as_layout
from .media import MediaError as MediaError
from .media import MediaLayout as MediaLayout
from .packed_batch import BatchBuffers as BatchBuffers
from .packed_batch import BatchTensors as BatchTensors
from .packed_batch import PackedBatch as PackedBatch
from .row_format import Media as Media
from .row_format import Separators as Separators
