"""The format of the log, and a limit on lines that strangers can cause.

Owns its two formats, its level, and the limit of lines about calls that break.

A line may have fields beside its message:

    _LOG.info("stream opened", extra=fields(dataset="corpus", rank=3))
"""

import json
import logging
import os
import re
import time
from datetime import UTC, datetime
from typing import Any

from packhorse.server.base.output import STDERR, LineHandler

GRPC_LOGGER = "grpc._cython.cygrpc"

LEVELS = ("debug", "info", "warning", "error")
"""Of --log-level. At debug there is a line for every single call."""

_FIELDS = "packhorse_fields"
_LONGEST = 300
"""Characters of a field: strangers choose some of them."""
_PLAIN = re.compile(r"[\w.:/+-]+")


def fields(**values: Any) -> dict[str, dict[str, Any]]:
    """Returns a line's fields as `extra`; those that are None or empty are left out."""
    return {_FIELDS: {name: _short(value) for name, value in values.items() if value is not None and value != ""}}


def set_up_logging(form: str, level: str) -> None:
    """Sends the log to stderr, as text or, for "json", an object a line. Other packages are logged from info on."""
    handler = LineHandler(STDERR)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    logging.basicConfig(level=max(logging.INFO, _number(level)), handlers=[handler])
    logging.getLogger("packhorse").setLevel(_number(level))


class TextLines(logging.Formatter):
    """Lines for people: time, level, logger, message, and fields as name=value."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        """The line without a traceback."""
        line = super().formatMessage(record).replace("\n", "\\n")  # names of files may hold line ends
        return " ".join([line, *(f"{k}={_word(v)}" for k, v in _fields_of(record).items())])


class JsonLines(logging.Formatter):
    """Lines for machines: one JSON object each, with the fields beside time, level, logger, process and message."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "process": os.getpid(),
            "message": record.getMessage(),
            **_fields_of(record),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class Sparing(logging.Filter):
    """Passes few records, each in one line, and counts the others in the next line.

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


def _number(level: str) -> int:
    return logging.getLevelNamesMapping()[level.upper()]


def _fields_of(record: logging.LogRecord) -> dict[str, Any]:
    values: dict[str, Any] = getattr(record, _FIELDS, {})
    return values


def _short(value: Any) -> Any:
    return f"{value[:_LONGEST]}…" if isinstance(value, str) and len(value) > _LONGEST else value


def _word(value: Any) -> str:
    """Returns a field's value in one word, or quoted: no text of a stranger can look like a line or field of ours."""
    text = f"{value:.3g}" if isinstance(value, float) else str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
