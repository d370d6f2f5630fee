"""Proof that training misses and repeats nothing: every sequence trained on, written down.

Owns the files of that proof, which tests read. The examples share it, and a training script of yours needs none.
"""

import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch


class Record:
    """One line of tokens (JSON) for every sequence, in a file for each rank."""

    def __init__(self, folder: str | None) -> None:
        """Opens `folder`/RANK, as torchrun sets it, to add to what is there; None writes nothing down."""
        self._file = None
        if folder is not None:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self._file = (Path(folder) / os.environ.get("RANK", "0")).open("a")

    def add(self, batch: dict[str, Any], offsets: torch.Tensor) -> None:
        """Writes a batch's sequences.

        Args:
            batch: with `input_ids` and `attention_mask`.
            offsets: its `cu_seqlens`, in which padding is left out: int32 [n + 1].
        """
        of_all = batch["input_ids"][batch["attention_mask"].bool()]
        for start, end in pairwise(offsets.tolist()):
            self.add_sequence(of_all[start:end])

    def add_sequence(self, tokens: torch.Tensor) -> None:
        """Writes one sequence: integers [n]."""
        if self._file is not None:
            print(json.dumps(tokens.tolist()), file=self._file, flush=True)
