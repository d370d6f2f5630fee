"""Array files are opened by many threads of one prepare."""

from threading import Lock
from time import sleep
from typing import Any

import numpy as np
from tests.flat_words import prepare


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
