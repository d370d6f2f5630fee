"""The format of the log, as text or JSON, and its level.

Owns both formats. The limit on lines about calls that break is in `log_limit`.

A line may have fields beside its message:

    _LOG.info("stream opened", extra=fields(dataset="corpus", rank=3))
"""

import json
import logging
import os
import re
from datetime import UTC, datetime
from typing import Any

from packhorse.server.base.output import STDERR, LineHandler

GRPC_LOGGER = "grpc._cython.cygrpc"

LEVELS = ("debug", "info", "warning", "error")
"""Levels for --log-level. At debug there is a line for every single call."""

_FIELDS = "packhorse_fields"
"""The attribute of a log record that has its fields."""
_LONGEST = 300
"""Most characters of a field: strangers choose the values of some."""
_PLAIN = re.compile(r"[\w.:/+-]+")
"""A value that the text format prints without quotes."""


def fields(**values: Any) -> dict[str, dict[str, Any]]:
    """Returns a line's fields, for `extra=`; values that are None or empty are left out."""
    return {_FIELDS: {name: _short(value) for name, value in values.items() if value is not None and value != ""}}


def set_up_logging(form: str, level: str) -> None:
    """Sends the log to stderr: as text or, if `form` is "json", one JSON object a line.

    `level` applies to packhorse. Other packages are never logged below info.
    """
    handler = LineHandler(STDERR)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    logging.basicConfig(level=max(logging.INFO, _number(level)), handlers=[handler])
    logging.getLogger("packhorse").setLevel(_number(level))


class TextLines(logging.Formatter):
    """Lines for people: time, level, logger, message, and fields as name=value."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        """Returns the line without a traceback."""
        line = super().formatMessage(record).replace("\n", "\\n")  # names of files may hold line ends
        return " ".join([line, *(f"{name}={_word(value)}" for name, value in _fields_of(record).items())])


class JsonLines(logging.Formatter):
    """Lines for machines: one JSON object each, with the fields beside time, level, logger, process and message."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line."""
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


def _number(level: str) -> int:
    return logging.getLevelNamesMapping()[level.upper()]


def _fields_of(record: logging.LogRecord) -> dict[str, Any]:
    values: dict[str, Any] = getattr(record, _FIELDS, {})
    return values


def _short(value: Any) -> Any:
    return f"{value[:_LONGEST]}…" if isinstance(value, str) and len(value) > _LONGEST else value


def _word(value: Any) -> str:
    """Returns a field's value, quoted unless it is plain, so that no stranger's text can look like a line or field."""
    text = f"{value:.3g}" if isinstance(value, float) else str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
