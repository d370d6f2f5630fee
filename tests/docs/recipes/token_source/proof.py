"""A path is recognised, and a dataset's batches hold its tokens; the source crosses into workers by pickling."""

import pickle
import sys
from pathlib import Path

import pytest

from packhorse.client import MemoryDatasets, PackedDataset
from packhorse.tokens import TokenSourceError, as_token_source

path = Path(sys.argv[1], "corpus.tokens.jsonl")
path.write_text("[1, 2, 3]\n[4, 5]\n")
source = pickle.loads(pickle.dumps(as_token_source(path)))
assert (source.num_sequences, source.read(0, 1, 1).tolist()) == (2, [2])
with pytest.raises(TokenSourceError, match="no line 2"):
    source.read(2)
[batch] = PackedDataset(MemoryDatasets({"x": [3, 2]}, max_seq_len=6), "x", path, batch_size=1)
assert batch["input_ids"].tolist() == [[1, 2, 3, 4, 5, 0]]
