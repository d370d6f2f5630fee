"""A limit on lines of the log that strangers can cause, such as those about calls that break.

Owns the count of what was left out. The format of lines is in `logs`.
"""

import logging
import time


class LineLimit(logging.Filter):
    """A logging filter that passes a few records in each period, as single lines, and counts the others.

    The next line that is passed says how many were left out before it. gRPC logs a traceback for every call that
    breaks, and clients can break thousands of calls a second.

    Args:
        most_lines: lines that are passed in each period.
        period_seconds: length of a period.
    """

    def __init__(self, most_lines: int = 5, period_seconds: float = 60.0) -> None:
        super().__init__()
        self._most_lines = most_lines
        self._period_seconds = period_seconds
        self._period_end = 0.0
        self._num_lines = 0
        self._num_left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether the record is logged, and makes it a single line."""
        now = time.monotonic()
        if now >= self._period_end:
            self._period_end, self._num_lines = now + self._period_seconds, 0
        if self._num_lines == self._most_lines:
            self._num_left_out += 1
            return False
        self._num_lines += 1
        line = record.getMessage().partition("\n")[0]
        if record.exc_info and record.exc_info[1] is not None:
            cause = f"{type(record.exc_info[1]).__name__}: {record.exc_info[1]}".partition("\n")[0]
            line = f"{line} ({cause})"
        if self._num_left_out:
            line = f"{line} ({self._num_left_out} similar lines left out before)"
            self._num_left_out = 0
        record.msg, record.args, record.exc_info, record.exc_text = line, (), None, None
        return True
