"""Token files: Megatron `.bin`/`.idx` and flat memory maps with boundaries, for preparing and for training alike.

Only re-exports; the formats stand in a file each. NumPy and the standard library only.
"""

from packhorse.formats.flat import FlatTokens, write_flat_tokens
from packhorse.formats.megatron import MegatronIndex, MegatronTokens, megatron_paths, token_dtype
from packhorse.formats.megatron_writer import MegatronWriter

__all__ = [
    "FlatTokens",
    "MegatronIndex",
    "MegatronTokens",
    "MegatronWriter",
    "megatron_paths",
    "token_dtype",
    "write_flat_tokens",
]
