"""The log stays readable whatever clients break."""

import logging

from packhorse.server import logs


def record(message, error=None):
    return logging.LogRecord("x", logging.ERROR, "", 0, message, (), (type(error), error, None) if error else None)


def test_a_traceback_becomes_a_line():
    line = record("Unexpected\n  File ...", ValueError("bad\nbytes"))
    assert logs.Sparing().filter(line)
    assert logging.Formatter().format(line) == "Unexpected (ValueError: bad)"


def test_few_lines_in_a_period_and_the_next_one_counts_the_others(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(logs.time, "monotonic", lambda: now[0])
    sparing = logs.Sparing(most_lines=2, period_seconds=60)
    assert [sparing.filter(record("a")) for _ in range(1000)] == [True] * 2 + [False] * 998
    now[0] = 60
    line = record("b")
    assert sparing.filter(line)
    assert line.getMessage() == "b (998 similar lines left out before)"
