"""Cutting spans into tasks: as many looks at spans as there are spans, however many row groups a file has."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from packhorse.dataset import PlanOptions
from packhorse.prepare.input._base import Span
from packhorse.prepare.input._rows import InputColumns
from packhorse.prepare.input.parquet import ParquetReader
from packhorse.prepare.passes import passes as _passes
from packhorse.prepare.passes.passes import make_tasks, rows_of_task


class CountedSpan:
    """A span that cannot be joined, and counts how often it is asked how long it is."""

    looks = 0
    path = "x"

    @property
    def num_rows(self) -> int:
        CountedSpan.looks += 1
        return 10

    def follows(self, before: Span) -> bool:
        return False


def test_tasks_are_cut_in_linear_time() -> None:
    spans: list[Span] = [CountedSpan() for _ in range(5000)]  # type: ignore[misc]
    (task,) = make_tasks(spans, PlanOptions(max_seq_len=8), 50_000)
    assert len(task.spans) == 5000
    assert CountedSpan.looks <= 3 * 5000


def test_row_groups_of_a_task_are_read_as_one_span(tmp_path: Path) -> None:
    for name in ("a", "b"):
        pq.write_table(pa.table({"n": np.arange(1, 101)}), tmp_path / f"{name}.parquet", row_group_size=1)
    paths = [str(tmp_path / f"{name}.parquet") for name in ("a", "b")]
    spans = ParquetReader().open(paths, InputColumns(length="n"), skips_bad_rows=False).spans
    assert len(spans) == 200
    for workers, expected in ((1, [100, 100]), (4, [50, 50, 50, 50]), (3, [67, 33, 34, 66])):
        options = PlanOptions(max_seq_len=1 << 23)
        tasks = make_tasks(spans, options, rows_of_task(200, options, workers))
        joined = [span for task in tasks for span in task.spans]
        assert [span.num_rows for span in joined] == expected
        assert [span.first_index for span in joined] == np.cumsum([0, *expected[:-1]]).tolist()
        lengths = [batch.lengths for span in joined for batch in span.batches()]
        assert np.concatenate(lengths).tolist() == [*range(1, 101)] * 2
    assert _passes._TASK_ROWS > 200
