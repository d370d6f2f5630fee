"""The names of `packhorse.client`, each loaded when it is first asked for."""

from .api import Client as Client
from .batches.batch import BatchAssembler as BatchAssembler
from .batches.layout import PackLayout as PackLayout
from .batches.layout import as_layout as as_layout
from .batches.packed_batch import Batch as Batch
from .batches.packed_batch import PackedBatch as PackedBatch
from .batches.row_format import Separators as Separators
from .connecting import Server as Server
from .connecting import connect as connect
from .costs import cost_linear_of as cost_linear_of
from .errors import DigestMismatchError as DigestMismatchError
from .errors import PackhorseError as PackhorseError
from .errors import StreamInterruptedError as StreamInterruptedError
from .loading.dataset import PackedDataset as PackedDataset
from .loading.loader import PackedDataLoader as PackedDataLoader
from .loading.loader import create_packed_dataloader as create_packed_dataloader
from .loading.packed_bins import PackedBins as PackedBins
from .loading.prefetch import DevicePrefetcher as DevicePrefetcher
from .memory_datasets import MemoryDatasets as MemoryDatasets
from .options import Balance as Balance
from .options import LoaderOptions as LoaderOptions
from .options import RemainderPolicy as RemainderPolicy
from .options import RetryPolicy as RetryPolicy
from .options import Run as Run
from .options import Skips as Skips
from .options import StreamMode as StreamMode
from .options import Topology as Topology
from .presets import BatchFormat as BatchFormat
from .presets import get_preset as get_preset
from .presets import list_presets as list_presets
from .sources import StoreCache as StoreCache
from .sources import StoreOptions as StoreOptions
from .sources import TokenSource as TokenSource
from .sources import as_token_source as as_token_source
from .streams import DatasetInfo as DatasetInfo
from .streams.blocks import BinBlock as BinBlock
from .streams.cursor import Cursor as Cursor
from .streams.pack_stream import PackStream as PackStream
from .streams.stream import BinStream as BinStream
from .transport.access import Access as Access

__version__: str
