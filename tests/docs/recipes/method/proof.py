"""A real server answers the client's method and the command; so does a folder, and tokens know the method."""

import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

import numpy as np
import pytest
from serving import serving

from packhorse.client import connect
from packhorse.client.errors import InvalidRequestError
from packhorse.dataset import PlanOptions
from packhorse.prepare import prepare
from packhorse.server.access.bearer_tokens import METHODS

root = Path(sys.argv[1])
COUNTS = {3: 2, 5: 1}
prepare(lengths=np.array([5, 3, 3]), output=root / "corpus", plan=PlanOptions(max_seq_len=8))
(root / "mixed.mixture.toml").write_text("epoch_bins = 2\n[[stages]]\nweights = {corpus = 1}\n")
assert "GetLengths" in METHODS
with connect(f"embedded:{root}") as client:
    assert client.get_lengths("corpus") == COUNTS
with serving(root, "packhorse: listening on ", "packhorse: metrics at ") as (target, _):
    with connect(target) as client:
        assert client.get_lengths("corpus") == COUNTS
        with pytest.raises(InvalidRequestError, match="is a mixture"):
            client.get_lengths("mixed")
    command = [sys.executable, "-m", "packhorse.cli", "lengths", "corpus", "--target", target]
    said = subprocess.run(command, capture_output=True, text=True)
    assert said.stdout == "3,2\n5,1\n", said.stdout + said.stderr
