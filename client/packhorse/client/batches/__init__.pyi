"""The names of `packhorse.client.batches`, each loaded when it is first asked for."""

from .batch import BatchAssembler as BatchAssembler
from .buffers import BatchBuffers as BatchBuffers
from .buffers import BatchTensors as BatchTensors
from .labels import IGNORE_INDEX as IGNORE_INDEX
from .labels import has_shifted_labels as has_shifted_labels
from .layout import PackLayout as PackLayout
from .layout import as_layout as as_layout
from .media import MediaError as MediaError
from .media import MediaLayout as MediaLayout
from .packed_batch import Batch as Batch
from .packed_batch import PackedBatch as PackedBatch
from .row_format import Media as Media
from .row_format import RowFormat as RowFormat
from .row_format import Separators as Separators
