"""Token files, for preparing and for training alike: Megatron `.bin`/`.idx`, flat memory maps, MDS shards.

Only re-exports; each format has a module. It needs only NumPy and the standard library: code that reads other formats
imports their libraries with `require` when it first needs them.
"""

from packhorse.formats.extras import require
from packhorse.formats.flat import FlatTokens, write_flat_tokens
from packhorse.formats.mds import MdsShards
from packhorse.formats.megatron import MegatronIndex, MegatronTokens, MegatronWriter, megatron_paths, token_dtype

__all__ = [
    "FlatTokens",
    "MdsShards",
    "MegatronIndex",
    "MegatronTokens",
    "MegatronWriter",
    "megatron_paths",
    "require",
    "token_dtype",
    "write_flat_tokens",
]
