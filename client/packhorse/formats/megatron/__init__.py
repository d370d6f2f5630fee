"""Megatron's token files `.bin` and `.idx`, with or without loss masks beside them: reading and writing them.

Only re-exports. `layout` says what the bytes mean.
"""

from packhorse.formats.megatron.index import MegatronIndex
from packhorse.formats.megatron.layout import HEADER, MAGIC, read_header, token_dtype, write_index
from packhorse.formats.megatron.masked_writer import MaskedTokenWriter
from packhorse.formats.megatron.paths import masked_paths, megatron_paths
from packhorse.formats.megatron.tokens import MegatronTokens
from packhorse.formats.megatron.writer import MegatronWriter

__all__ = [
    "HEADER",
    "MAGIC",
    "MaskedTokenWriter",
    "MegatronIndex",
    "MegatronTokens",
    "MegatronWriter",
    "masked_paths",
    "megatron_paths",
    "read_header",
    "token_dtype",
    "write_index",
]
