"""What the log may be made to say by others.

Owns the limit of lines about calls that break; leaves the log's format to the command line.
"""

import logging
import time

GRPC_LOGGER = "grpc._cython.cygrpc"


class Sparing(logging.Filter):
    """Lets few records through, each in one line, and counts the others in the next that it lets through.

    gRPC logs a traceback for every call that breaks; clients can break thousands a second.

    Args:
        most_lines: in every period.
        period_seconds: how long that is.
    """

    def __init__(self, most_lines: int = 5, period_seconds: float = 60.0) -> None:
        super().__init__()
        self._most_lines = most_lines
        self._period_seconds = period_seconds
        self._period_end = 0.0
        self._num_lines = 0
        self._num_left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is logged; one that is becomes a single line."""
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
