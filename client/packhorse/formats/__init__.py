"""Token files, for preparing and for training alike: Megatron `.bin`/`.idx`, flat memory maps, MDS shards.

Only re-exports; each format has a file. NumPy and the standard library only: what reads other formats imports their
libraries with `require`.
"""

from packhorse.formats.extras import require
from packhorse.formats.flat import FlatTokens, write_flat_tokens
from packhorse.formats.mds import MdsShards
from packhorse.formats.megatron import MegatronIndex, MegatronTokens, megatron_paths, token_dtype
from packhorse.formats.megatron_writer import MegatronWriter

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
