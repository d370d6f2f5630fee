"""Token sources: from a sequence's id to its tokens, in every kind of storage. For clients and servers alike.

Only re-exports. `base` defines what a source is. Each format has a module, those of tables in `tables`, and `choose`
finds the source for a path, a URL or an object.
"""

from packhorse.tokens.base import TokenSource, TokenSourceError
from packhorse.tokens.choose import as_token_source
from packhorse.tokens.indexable import IndexableSource
from packhorse.tokens.mixture import MixtureSource
from packhorse.tokens.remote_token_files import RemoteSource
from packhorse.tokens.stored.store_cache import StoreCache
from packhorse.tokens.tables.arrow import ArrowSource
from packhorse.tokens.tables.mds import MdsSource
from packhorse.tokens.tables.parquet import ParquetSource
from packhorse.tokens.tables.remote_arrow import RemoteArrowSource
from packhorse.tokens.token_files import FlatSource, MegatronSource

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
    "TokenSource",
    "TokenSourceError",
    "as_token_source",
]
