"""Supervised fine-tuning: chats and prompt/response pairs to tokens and a loss mask.

Only re-exports. Of third-party packages only NumPy is imported at once; `tokenizers` and `jinja2` are imported when
they are first needed.
"""

from packhorse.formats.loss_mask import LOSS_MASK_SUFFIX
from packhorse.formats.megatron import MaskedTokenWriter
from packhorse.sft.chat import ChatEncoder, encode_chat
from packhorse.sft.explained import ExplainedSequence, Stretch
from packhorse.sft.pairs import PairEncoder, encode_prompt_response
from packhorse.sft.sequence import EncodedSequence, NoTargetsError
from packhorse.sft.tokenizer import ChatTokenizer
from packhorse.sft.tokenizer_loading import load_chat_tokenizer

__all__ = [
    "LOSS_MASK_SUFFIX",
    "ChatEncoder",
    "ChatTokenizer",
    "EncodedSequence",
    "ExplainedSequence",
    "MaskedTokenWriter",
    "NoTargetsError",
    "PairEncoder",
    "Stretch",
    "encode_chat",
    "encode_prompt_response",
    "load_chat_tokenizer",
]
