"""Preparing: raw data to a prepared folder, and text to token files."""

from packhorse.prepare.loading import load_prepared
from packhorse.prepare.pipeline import Layout, prepare
from packhorse.prepare.tokenization import TokenizeSummary, tokenize

__all__ = ["Layout", "TokenizeSummary", "load_prepared", "prepare", "tokenize"]
