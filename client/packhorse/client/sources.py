"""Token sources, under the name that trainers import: files, object stores, mixtures, and your own.

Only re-exports; the sources are in `packhorse.tokens`, which servers read too.
"""

from packhorse.formats.object_store import StoreOptions, TokenStoreError
from packhorse.tokens import (
    ArrowSource,
    FlatSource,
    IndexableSource,
    MdsSource,
    MegatronSource,
    MixtureSource,
    ParquetSource,
    RemoteArrowSource,
    RemoteSource,
    StoreCache,
    TokenSource,
    TokenSourceError,
    as_token_source,
)

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
