"""Log lines: one event a line, key=value, on stderr.

Must not know: what is logged. Rules: an event is a short dotted name and its facts, not prose; secrets never; what
libraries say by the standard logging comes out in the same form, from WARNING on; a stderr that nobody reads hurts
nobody.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, cast

import structlog
from structlog.stdlib import LoggerFactory, ProcessorFormatter

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor, WrappedLogger

    from nacosdns.ports import Log

OURS = "nacosdns"


def log() -> Log:
    """Our log, as ``configure`` set it up last."""
    return cast("Log", structlog.get_logger(OURS))


def configure(level: str, **identity: str | int) -> None:
    """Sets logging up for this process; may be called again. ``identity`` (role, slot) stands on every line."""

    def identify(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        return {**event, **identity}

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
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[ProcessorFormatter.remove_processors_meta, render],
        )
    )
    logging.raiseExceptions = False
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger(OURS).setLevel(level.upper())
