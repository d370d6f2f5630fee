"""Rows made ahead: each is what it would be alone, and jumps make nothing in vain."""

import threading

import numpy as np
import pytest

from packhorse.client.loading import _read_ahead as _rows_ahead
from packhorse.client.loading._read_ahead import RowsAhead


class Maker:
    """Makes rows of their index, and remembers what it was asked for."""

    def __init__(self):
        self.asked = []

    def __call__(self, indices):
        self.asked.append(list(indices))
        return [{"row": np.full(4, index)} for index in indices]


def test_a_walk_is_served_by_few_calls_in_any_step():
    for step in (1, 3):
        make = Maker()
        rows = RowsAhead(make, 300)
        for index in range(0, 300, step):
            assert rows.row(index)["row"].tolist() == [index] * 4
        made = [index for call in make.asked for index in call]
        assert sorted(made) == list(range(0, 300, step))
        assert len(make.asked) < len(made) / 5


def test_jumps_make_what_is_asked_for_alone():
    make = Maker()
    rows = RowsAhead(make, 1_000_000)
    jumps = np.random.default_rng(0).permutation(1_000_000)[:200].tolist()
    assert [rows.row(index)["row"][0] for index in jumps] == jumps
    assert make.asked == [[index] for index in jumps]


def test_threads_out_of_step_get_each_row_once_made_once():
    make = Maker()
    rows = RowsAhead(make, 640)
    got = [None] * 640

    def take(thread):
        for first in range(8 * thread, 640, 64):
            for index in range(first, first + 8):
                got[index] = int(rows.row(index)["row"][0])

    threads = [threading.Thread(target=take, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == list(range(640))
    made = [index for call in make.asked for index in call]
    assert len(made) < 2 * 640


def test_rows_that_nobody_takes_are_let_go(monkeypatch):
    monkeypatch.setattr(_rows_ahead, "_READY_BYTES", 10 * 32)
    rows = RowsAhead(Maker(), 1000)
    for first in range(0, 1000, 20):
        for index in range(first, first + 5):
            assert rows.row(index)["row"][0] == index
        assert len(rows._ready) <= 10


def test_long_rows_are_made_one_by_one(monkeypatch):
    monkeypatch.setattr(_rows_ahead, "_AT_ONCE_BYTES", 40)
    make = Maker()
    rows = RowsAhead(make, 100)
    assert [rows.row(index)["row"][0] for index in range(100)] == list(range(100))
    assert make.asked == [[index] for index in range(100)]


def test_an_error_is_raised_and_the_next_call_tries_again():
    make = Maker()
    fails = [True]

    def sometimes(indices):
        if fails.pop():
            fails.append(False)
            raise OSError("the store is away")
        fails.append(False)
        return make(indices)

    rows = RowsAhead(sometimes, 10)
    with pytest.raises(OSError, match="the store is away"):
        rows.row(3)
    assert rows.row(3)["row"][0] == 3
