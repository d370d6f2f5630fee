"""Array files are opened by many threads of one prepare; Arrow's small batches are joined."""

from threading import Lock
from time import sleep
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.flat_words import prepare

from packhorse.prepare.input import InputColumns, Resource, open_held


def test_no_two_threads_parse_a_header_at_once(tmp_path, monkeypatch):
    """Python 3.11 ends in a SystemError now and then where they do."""
    for name in range(4):
        np.save(tmp_path / f"{name}.npy", np.arange(1, 51))
    read, parsing, met = np.load, Lock(), []

    def load(*args: Any, **kwargs: Any) -> Any:
        if not parsing.acquire(blocking=False):
            met.append(args)
            return read(*args, **kwargs)
        try:
            sleep(0.005)
            return read(*args, **kwargs)
        finally:
            parsing.release()

    monkeypatch.setattr(np, "load", load)
    monkeypatch.setattr("packhorse.prepare.counting._TASK_ROWS", 10)
    inputs = [tmp_path / f"{name}.npy" for name in range(4)]
    prepare(inputs, max_seq_len=128, output=tmp_path / "out", workers=4, progress=False)
    assert not met


def test_a_null_resource_is_named_if_other_batches_have_none():
    """Whoever joined a batch without nulls to one with some met an error of NumPy, about dimensions."""
    sound = pa.table({"length": [3, 4], "tiles": [1, 2]})
    bad = pa.table({"length": [3, 4], "tiles": pa.array([1, None], pa.int64())})
    resources = (Resource(name="tiles", column="tiles"),)
    (rows,) = open_held(pa.concat_tables([sound, bad]), InputColumns(resources=resources)).ranges
    with pytest.raises(ValueError, match="row 3, column 'tiles' is null, but a resource is a number"):
        list(rows.batches())
