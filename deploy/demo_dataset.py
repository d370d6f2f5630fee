"""Prepares the dataset `demo` below a folder: a million made-up lengths, for a server to show what it does.

Owns the demo of compose.yaml, whose init service runs it. Takes seconds, and does nothing where the dataset is there.
"""

import sys
from pathlib import Path

import numpy as np

from packhorse.prepare import prepare

output = Path(sys.argv[1], "demo")
if not output.exists():
    lengths = np.random.default_rng(0).lognormal(6.0, 1.2, 1_000_000).astype(np.int64).clip(16, 8192)
    prepare(lengths=lengths, max_seq_len=8192, output=output)
