"""What tests of the examples share: a learnable corpus, its server, and torchrun."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

ROOT = str(Path(__file__).parents[2])
EXAMPLES = Path(ROOT) / "client" / "examples"
VOCAB_SIZE = 64
RUN_SECONDS = 150
_LOSS = re.compile(r"\bloss'?:? '?([0-9.]+|nan|inf)")


TORCHRUN = ("-m", "torch.distributed.run")
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""In each rank, as torchrun has it."""
FORKED = ("-m", "tests.examples.forked_ranks")
"""Takes the same arguments, and imports PyTorch once."""


@dataclass(frozen=True)
class Progressions:
    """Sequences that a model learns within an epoch, served."""

    target: str
    tokens: Path
    sequences: Counter = field(repr=False)
    """Of token tuples."""


@pytest.fixture(scope="session")
def progressions(tmp_path_factory, make_server):
    """900 sequences that count on by one from anywhere, in the dataset `counting` (128 tokens in a row)."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from tests.flat_words import prepare

    from packhorse.formats import MegatronWriter

    folder = tmp_path_factory.mktemp("progressions")
    random = np.random.default_rng(11)
    lengths = random.integers(4, 100, 900)
    sequences = [(random.integers(VOCAB_SIZE) + np.arange(length)) % VOCAB_SIZE for length in lengths]
    with MegatronWriter(folder / "counting", vocab_size=VOCAB_SIZE) as writer:
        for tokens in sequences:
            writer.append(tokens)
    pq.write_table(pa.table({"length": lengths}), folder / "lengths.parquet")
    prepare(
        folder / "lengths.parquet",
        length_column="length",
        output=folder / "root" / "counting",
        max_seq_len=128,
        progress=False,
    )
    with make_server(folder / "root") as server:
        yield Progressions(server.target, folder / "counting", Counter(tuple(s.tolist()) for s in sequences))


@pytest.fixture
def run_example(progressions, tmp_path, no_launcher):
    """Function: runs an example by torchrun; returns the losses that it printed. `tmp_path` is its working folder."""

    def run(script, *flags, processes=2, launcher=TORCHRUN):
        command = [sys.executable, *launcher, "--nproc-per-node", processes, "--standalone"]
        command += [EXAMPLES / script, "--target", progressions.target, "--dataset", "counting"]
        command += ["--tokens", progressions.tokens, "--vocab-size", VOCAB_SIZE, "--batch-size", 4, *flags]
        done = subprocess.run(
            [*map(str, command)],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")])} | ONE_THREAD,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return [float(loss) for loss in _LOSS.findall(done.stdout)]

    return run


@pytest.fixture
def recorded(tmp_path):
    """Function: Counter of the token tuples that each rank wrote down below a folder."""

    def read(folder):
        return [
            Counter(tuple(json.loads(line)) for line in path.read_text().splitlines())
            for path in sorted((tmp_path / folder).iterdir())
        ]

    return read
