"""A dataset takes the preset by its name, and its keys are those of the trainer's own loss."""

import torch

from packhorse.client import MemoryDatasets, PackedDataset, get_preset

TOKENS = [[1, 2, 3], [4, 5]]
datasets = MemoryDatasets({"x": TOKENS}, max_seq_len=6)
[batch] = PackedDataset(datasets, "x", TOKENS, batch_size=1, preset="nanogpt")
assert batch["idx"].tolist() == [[1, 2, 3, 4, 5, 0]]
assert batch["targets"].tolist() == [[2, 3, -1, 5, -1, -1]]
logits = torch.zeros(1, 6, 8)
loss = torch.nn.functional.cross_entropy(logits.view(-1, 8), batch["targets"].view(-1), ignore_index=-1)
assert torch.isclose(loss.exp(), torch.tensor(8.0))
assert "nanoGPT" in str(get_preset("nanogpt"))
