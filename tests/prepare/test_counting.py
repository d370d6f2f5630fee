"""Cutting ranges into tasks: as many looks at ranges as there are ranges, however many row groups a file has."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from packhorse.dataset import PlanOptions
from packhorse.prepare import counting
from packhorse.prepare.counting import make_tasks, rows_of_task
from packhorse.prepare.input._base import RowRange
from packhorse.prepare.input._columns import InputColumns
from packhorse.prepare.input.parquet import ParquetReader


class CountedRange:
    """A range that cannot be joined, and counts how often it is asked how long it is."""

    looks = 0
    path = "x"

    @property
    def num_rows(self) -> int:
        CountedRange.looks += 1
        return 10

    def follows(self, before: RowRange) -> bool:
        return False


def test_tasks_are_cut_in_linear_time() -> None:
    ranges: list[RowRange] = [CountedRange() for _ in range(5000)]  # type: ignore[misc]
    (task,) = make_tasks(ranges, PlanOptions(max_seq_len=8), 50_000)
    assert len(task.ranges) == 5000
    assert CountedRange.looks <= 3 * 5000


def test_row_groups_of_a_task_are_read_as_one_range(tmp_path: Path) -> None:
    for name in ("a", "b"):
        pq.write_table(pa.table({"n": np.arange(1, 101)}), tmp_path / f"{name}.parquet", row_group_size=1)
    paths = [str(tmp_path / f"{name}.parquet") for name in ("a", "b")]
    ranges = ParquetReader().open(paths, InputColumns(length="n")).ranges
    assert len(ranges) == 200
    for workers, expected in ((1, [100, 100]), (4, [50, 50, 50, 50]), (3, [67, 33, 34, 66])):
        options = PlanOptions(max_seq_len=1 << 23)
        tasks = make_tasks(ranges, options, rows_of_task(200, options, workers))
        joined = [each for task in tasks for each in task.ranges]
        assert [each.num_rows for each in joined] == expected
        assert [each.first_index for each in joined] == np.cumsum([0, *expected[:-1]]).tolist()
        lengths = [batch.lengths for each in joined for batch in each.batches()]
        assert np.concatenate(lengths).tolist() == [*range(1, 101)] * 2
    assert counting._TASK_ROWS > 200
