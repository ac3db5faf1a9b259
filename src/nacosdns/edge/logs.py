"""Log lines: one event a line, key=value, on stderr.

Must not know: what is logged. Rules: an event is a short dotted name and its facts, not prose; secrets never; what
libraries say by the standard logging comes out in the same form, from WARNING on; a stderr that nobody reads hurts
nobody.
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

OURS = "nacosdns"
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class EventLog:
    """Implements ports.Log over the standard logging."""

    def __init__(self, name: str = OURS) -> None:
        self._logger = logging.getLogger(name)

    def __repr__(self) -> str:
        return f"<EventLog {self._logger.name}>"

    def debug(self, event: str, **facts: object) -> None:
        self._write(logging.DEBUG, event, facts)

    def info(self, event: str, **facts: object) -> None:
        self._write(logging.INFO, event, facts)

    def warning(self, event: str, **facts: object) -> None:
        self._write(logging.WARNING, event, facts)

    def error(self, event: str, **facts: object) -> None:
        self._write(logging.ERROR, event, facts)

    def exception(self, event: str, **facts: object) -> None:
        self._write(logging.ERROR, event, {**facts, "exc_info": sys.exc_info()[1]})

    def _write(self, level: int, event: str, facts: dict[str, object]) -> None:
        if self._logger.isEnabledFor(level):
            fault = facts.pop("exc_info", None)
            self._logger.log(
                level, event, extra={"facts": facts}, exc_info=fault if isinstance(fault, BaseException) else None
            )


class _LogfmtFormatter(logging.Formatter):
    """One line of logfmt; ``identity`` stands at its end."""

    def __init__(self, identity: Mapping[str, str | int]) -> None:
        super().__init__()
        self._identity = identity

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "facts", {}),
            **self._identity,
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return " ".join(f"{key}={_value(value)}" for key, value in fields.items())


def _value(value: object) -> str:
    """A value that stays on its line and ends where it ends."""
    if value is None:
        return ""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if any(mark in text for mark in ' ="'):
        text = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return text.replace("\n", "\\n")


def configure(level: str, **identity: str | int) -> None:
    """Sets logging up for this process; may be called again. ``identity`` (role, slot) stands on every line."""
    logging.raiseExceptions = False
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_LogfmtFormatter(identity))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger(OURS).setLevel(_LEVELS[level])
