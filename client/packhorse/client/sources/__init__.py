"""Token sources: from a sequence's id to its tokens, in every kind of storage.

Only re-exports. `base` says what a source is; each format has a file for disks and stores alike, and `choose` tells
which one is meant.
"""

from packhorse.client.sources._node_cache import StoreCache
from packhorse.client.sources.arrow import ArrowSource, RemoteArrowSource
from packhorse.client.sources.base import TokenSource, TokenSourceError
from packhorse.client.sources.choose import IndexableSource, as_token_source
from packhorse.client.sources.mds import MdsSource
from packhorse.client.sources.mixture import MixtureSource
from packhorse.client.sources.parquet import ParquetSource
from packhorse.client.sources.token_files import FlatSource, MegatronSource, RemoteSource
from packhorse.formats.object_store import StoreOptions, TokenStoreError

__all__ = [
    "ArrowSource",
    "FlatSource",
    "IndexableSource",
    "MdsSource",
    "MegatronSource",
    "MixtureSource",
    "ParquetSource",
    "RemoteArrowSource",
    "RemoteSource",
    "StoreCache",
    "StoreOptions",
    "TokenSource",
    "TokenSourceError",
    "TokenStoreError",
    "as_token_source",
]
