"""Log lines: one event a line, key=value, on stderr.

Must not know: what is logged. Rules: an event is a short dotted name and its facts, not prose; secrets never; what
libraries say by the standard logging comes out in the same form, from WARNING on; a stderr that nobody reads hurts
nobody; no event fills a disk: of each so many lines are said in a while, and the next one says how many were not.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import TYPE_CHECKING, TextIO, cast

import structlog
from structlog.stdlib import LoggerFactory, ProcessorFormatter

from nacosdns.core.printable import printable

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor, WrappedLogger

    from nacosdns.ports import Log

OURS = "nacosdns"
LINES_MAX, LINES_WITHIN_S = 100, 10.0
"""Of one event of one process. Query logs are as long as [log] queries wants them."""
_UNBOUNDED = frozenset({"query"})
_PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}


def log() -> Log:
    """Our log, as ``configure`` set it up last."""
    return cast("Log", structlog.get_logger(OURS))


class Restraint(logging.Filter):
    """Lets ``LINES_MAX`` lines of an event through in ``LINES_WITHIN_S``; the next one has ``unsaid``, how many were kept back.

    An event of ours is known by its name, one of a library by the line of code that it comes from.
    """

    def __init__(self) -> None:
        super().__init__()
        self._began = 0.0
        self._lines: dict[object, int] = {}
        self._unsaid: dict[object, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this line is said."""
        ours = record.msg if isinstance(record.msg, dict) else {}
        event = ours.get("event") or (record.pathname, record.lineno)
        if event in _UNBOUNDED:
            return True
        now = time.monotonic()
        if now - self._began >= LINES_WITHIN_S:
            self._unsaid |= {name: count - LINES_MAX for name, count in self._lines.items() if count > LINES_MAX}
            self._began, self._lines = now, {}
        count = self._lines[event] = self._lines.get(event, 0) + 1
        if count > LINES_MAX:
            return False
        unsaid = self._unsaid.pop(event, 0)
        if unsaid and ours:
            ours["unsaid"] = unsaid
        return True


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]  # of text
    """Where the journal reads it, each line begins with its priority (sd-daemon(3)), which the journal takes off."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self._is_the_journals = _is_the_journals(sys.stderr)

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line = super().format(record)
        return f"<{_PRIORITIES.get(record.levelno, 6)}>{line}" if self._is_the_journals else line


def _is_the_journals(stream: TextIO) -> bool:
    """Whether systemd gave us this stream to log to (``$JOURNAL_STREAM``, systemd.exec(5))."""
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def configure(level: str, **identity: str | int) -> None:
    """Sets logging up for this process; may be called again. ``identity`` (role, slot) stands on every line."""

    def identify(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        return {**event, **identity}

    def spell(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        """A log is read on terminals: what comes from outside must not steer one. Line breaks are the renderer's."""
        return {
            key: "\n".join(map(printable, value.split("\n"))) if isinstance(value, str) else value
            for key, value in event.items()
        }

    shared: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        identify,
    ]
    structlog.configure(
        processors=[*shared, ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    render = structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"], bool_as_flag=False)
    handler = _Stderr()
    handler.addFilter(Restraint())
    handler.setFormatter(
        ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[ProcessorFormatter.remove_processors_meta, spell, render],
        )
    )
    logging.raiseExceptions = False
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger(OURS).setLevel(level.upper())
