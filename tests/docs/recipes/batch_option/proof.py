"""A dataset's batches, rollouts and pairs have the option; trees and audits refuse it by name."""

import pytest

from packhorse.client import BatchFormat, MemoryDatasets, PackedDataset, Topology, connect
from packhorse.proof import EpochOfStreams, TokenAudit
from packhorse.rollouts import Rollouts, pack_pairs, pack_rollouts

MARK = 9
TOKENS = [[1, MARK, 2], [3, 4, MARK]]
WITH = {"unpredicted_token_id": MARK}

datasets = MemoryDatasets({"chats": TOKENS}, max_seq_len=6)
dataset = PackedDataset(datasets, "chats", TOKENS, batch_size=1, batch=BatchFormat(**WITH))
[batch] = dataset
[rollouts] = pack_rollouts(
    Rollouts(queries=[[1], [3]], responses=[[MARK, 2], [4, MARK]]), max_seq_len=6, pad_token_id=0, **WITH
)
[pairs] = pack_pairs([[1]], [[MARK, 2]], [[3, 4, MARK]], max_seq_len=8, pad_token_id=0, **WITH)
for each in (batch, rollouts, pairs):
    assert MARK in each["input_ids"], "it is read"
    assert MARK not in each["labels"], "and never predicted"
    assert (each["labels"] == 2).sum() == (each["labels"] == 4).sum() == 1, "as all others are"


with pytest.raises(ValueError, match=r"goes without .*unpredicted_token_id"):
    BatchFormat(shared_prefix="tree", **WITH)
with pytest.raises(ValueError, match=r"goes without .*unpredicted_token_id"):
    pack_pairs([[1]], [[2]], [[3]], max_seq_len=8, pad_token_id=0, prefixes="tree", **WITH)
with pytest.raises(ValueError, match="unpredicted_token_id must be"):
    BatchFormat(unpredicted_token_id=-1)
with connect(datasets) as client:
    streams = EpochOfStreams(client=client, dataset=client.get_dataset("chats"), epoch=0, seed=0, topology=Topology())
    with pytest.raises(ValueError, match=r"without a preset.*unpredicted_token_id"):
        TokenAudit(streams=streams, dataset=dataset).audit()
