"""Tokenizing: text, or chats, prompt/response pairs and preferences, become token files that `packhorse.prepare` plans.

Only re-exports. Start with `tokenize` for text and `tokenize_fine_tuning` for rows of fine-tuning.
"""

from packhorse.jobs import Execution
from packhorse.tokenize._left_out_lines import recorded_lines, unused_lines
from packhorse.tokenize._row_recipe import NoTargets
from packhorse.tokenize.columns import ChatColumns, PairColumns, PreferenceColumns, columns_of
from packhorse.tokenize.documents import DocumentOptions, Split, iterate_documents
from packhorse.tokenize.encoding.encoder import SpecialTokens
from packhorse.tokenize.encoding.training import DEFAULT_EOS, DEFAULT_VOCAB_SIZE, train_tokenizer
from packhorse.tokenize.fine_tuning import FineTuningSummary, tokenize_fine_tuning
from packhorse.tokenize.input.skipped import OnBadRow, Skipped, Undecodable
from packhorse.tokenize.joining import JoinSummary, is_token_file, join_token_files
from packhorse.tokenize.origins import TracedSequence, trace_sequence
from packhorse.tokenize.preview import preview_fine_tuning, preview_text
from packhorse.tokenize.sampling import RowSample, sample_rows
from packhorse.tokenize.text import TokenizeSummary, tokenize, tokenize_documents

__all__ = [
    "DEFAULT_EOS",
    "DEFAULT_VOCAB_SIZE",
    "ChatColumns",
    "DocumentOptions",
    "Execution",
    "FineTuningSummary",
    "JoinSummary",
    "NoTargets",
    "OnBadRow",
    "PairColumns",
    "PreferenceColumns",
    "RowSample",
    "Skipped",
    "SpecialTokens",
    "Split",
    "TokenizeSummary",
    "TracedSequence",
    "Undecodable",
    "columns_of",
    "is_token_file",
    "iterate_documents",
    "join_token_files",
    "preview_fine_tuning",
    "preview_text",
    "recorded_lines",
    "sample_rows",
    "tokenize",
    "tokenize_documents",
    "tokenize_fine_tuning",
    "trace_sequence",
    "train_tokenizer",
    "unused_lines",
]
