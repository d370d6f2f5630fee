"""Prints, as JSON, what this machine makes of inputs that are the same everywhere.

Owns the inputs: golden vectors, lists for every packer, and datasets that `packhorse prepare` writes and `packhorse
stream` reads. tests/deploy/test_arm64.py runs it on two processors and compares, so it needs neither torch nor pytest.
Lengths are drawn as integers: the last bits of a logarithm depend on the C library.
"""

import json
import os
import platform
import runpy
import sys
from contextlib import redirect_stdout
from hashlib import sha256
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from packhorse.cli import main as packhorse
from packhorse.compiling import HAS_NUMBA
from packhorse.packing import PACKERS, pack_sequences

REGENERATE = Path(__file__).with_name("regenerate.py")
MAX_SEQ_LEN = 512
LENGTHS = 1 + np.random.default_rng(5).integers(0, MAX_SEQ_LEN, 1200) ** 2 // MAX_SEQ_LEN
"""Many short sequences, so that some bins have more of them than a vector instruction has lanes."""

MOST_SEARCHED = 150
"""Sequences of a list that a search plans: so few that it solves no linear program, which HiGHS may round otherwise."""

DATASETS: dict[str, tuple[str, ...]] = {
    "plain": ("--algorithm", "best-fit"),
    "pieces": ("--algorithm", "best-fit", "--max-seq-len", "200", "--over-length", "split"),
    "pairs": ("--algorithm", "best-fit", "--max-seq-len", "1024", "--group-size", "2"),
    "aligned": ("--algorithm", "balanced", "--align", "8", "--max-sequences-per-bin", "6"),
    "named": ("--algorithm", "best-fit", "--input", "named.npy", "--length-column", "length", "--id-column", "id"),
    "auto": (),
}
"""Name → options of `packhorse prepare`; they come before those of all."""

MIXTURE = """epoch_bins = 300

[[stages]]
until_bins = 120
weights = {plain = 2, pieces = 1}

[[stages]]
by = "tokens"
weights = {plain = 0.3, pieces = 0.7}

[components.plain]
shuffle = "windowed(5)"
"""
STREAMS = (
    ("--epoch", "0", "--seed", "7"),
    ("--epoch", "3", "--seed", str(2**64 - 1), "--world-size", "3", "--rank", "1", "--balance", "micro-step"),
)


def printed(*arguments: str) -> str:
    """What a command prints."""
    with redirect_stdout(StringIO()) as output:
        packhorse(arguments, standalone_mode=False)
    return output.getvalue()


def datasets() -> dict[str, Any]:
    """Each dataset's digest, the hashes of its files, and bins of two epochs; a mixture's bins too."""
    np.save("lengths.npy", LENGTHS)
    ids = np.arange(len(LENGTHS)) * 2**33 - 2**40
    np.save("named.npy", np.rec.fromarrays([LENGTHS, ids], names=["length", "id"]))
    for name in ("lengths.npy", "named.npy"):
        os.utime(name, (0, 0))  # a manifest says when its inputs were changed
    found: dict[str, Any] = {}
    for name, options in DATASETS.items():
        plan = dict(zip(options[::2], options[1::2], strict=True))
        words = {"--input": "lengths.npy", "--max-seq-len": str(MAX_SEQ_LEN), "--output": name} | plan
        printed("prepare", *(word for pair in words.items() for word in pair))
        files = {file.name: sha256(file.read_bytes()).hexdigest() for file in sorted(Path(name).iterdir())}
        found[name] = {"digest": json.loads(Path(name, "manifest.json").read_text())["digest"], "files": files}
    Path("mixed.mixture.toml").write_text(MIXTURE)
    for name in (*DATASETS, "mixed"):
        bins = [printed("stream", name, "--target", "embedded:.", *options).splitlines() for options in STREAMS]
        found.setdefault(name, {})["bins"] = bins
    return found


def packed() -> dict[str, list[list[int]]]:
    """The bins of every packer, by their sequences' indices."""
    found, searches = {}, {"auto", "optimal"}
    for name in sorted({*PACKERS, *searches} if HAS_NUMBA else {*PACKERS} - searches):
        lengths = LENGTHS[:MOST_SEARCHED] if name in searches else LENGTHS
        plan = pack_sequences(lengths, MAX_SEQ_LEN, algorithm=name, seed=3)
        found[name] = [list(map(int, each)) for each in plan.bins()]
    return found


def main() -> None:
    """Prints everything. Without Numba there is no `packhorse prepare`."""
    made: dict[str, Any] = {"machine": platform.machine(), "has_numba": HAS_NUMBA}
    made |= {"vectors": runpy.run_path(str(REGENERATE))["vectors"](), "packed": packed()}
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        made["datasets"] = datasets() if HAS_NUMBA else {}
    json.dump(made, sys.stdout)


if __name__ == "__main__":
    main()
