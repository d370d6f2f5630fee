"""Token sources, under the name that trainers import: files, object stores, mixtures, and your own.

This module only re-exports. The sources are in `packhorse.tokens`, which servers use too; a store's options and error
are in `packhorse.formats.object_store`.
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
