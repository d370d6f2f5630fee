"""Rows left out are counted by reason for everybody; groups and resources refuse it; appending compares it."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packhorse.client import connect
from packhorse.dataset import PlanOptions
from packhorse.prepare import Grouping, InputColumns, Resource, prepare

root = Path(sys.argv[1])
REASON = "the length is below min_tokens"
LENGTHS = np.array([1, 3, 1, 4, 6, 2])
PLAN = PlanOptions(max_seq_len=8, min_tokens=3)
table = root / "lengths.parquet"
pq.write_table(pa.table({"length": LENGTHS, "tiles": [0] * len(LENGTHS)}), table)


manifest = prepare(table, output=root / "datasets" / "rows", plan=PLAN)
assert (manifest.num_sequences, manifest.inputs.skipped.by_reason) == (3, {REASON: 3})
assert [row.row for row in manifest.inputs.skipped.first] == [0, 2, 5]
with connect(f"embedded:{root / 'datasets'}") as client:
    assert client.get_dataset("rows").skipped_by_reason == {REASON: 3}
    assert sorted(client.get_bins("rows", positions=range(manifest.num_bins)).ids.tolist()) == [1, 3, 4]

more = prepare(lengths=LENGTHS, output=root / "datasets" / "held", plan=PLAN)
more = prepare(lengths=LENGTHS, output=root / "datasets" / "held", plan=PLAN, append=True)
assert (more.num_sequences, more.inputs.skipped.by_reason) == (6, {REASON: 6})
with pytest.raises(ValueError, match="min_tokens was 3 and is None"):
    prepare(table, output=root / "datasets" / "rows", plan=PlanOptions(max_seq_len=8), append=True)
TILES = Resource(name="tiles", column="tiles")
for options, message in (
    ({"plan": PLAN, "grouping": Grouping(size=2)}, "min_tokens does not go with groups"),
    ({"plan": PLAN, "columns": InputColumns(resources=(TILES,))}, "min_tokens does not go with resources"),
    ({"plan": PlanOptions(max_seq_len=8, min_tokens=0)}, "min_tokens must be an integer of at least 1"),
):
    with pytest.raises(ValueError, match=message):
        prepare(table, output=root / "refused", **options)

command = [sys.executable, "-m", "packhorse.cli", "prepare", "--input", table, "--output", root / "said"]
said = subprocess.run([*command, "--max-seq-len", "8", "--min-tokens", "3"], capture_output=True, text=True)
assert said.returncode == 0, said.stderr
assert f"3 where {REASON}" in said.stdout + said.stderr, said.stdout + said.stderr
