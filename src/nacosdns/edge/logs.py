"""Log lines: one event a line, key=value, on stderr.

Must not know: what is logged. Rules: an event is a short dotted name and its facts, not prose; secrets never; what
libraries say by the standard logging comes out in the same form, from WARNING on.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

import structlog
from structlog.stdlib import ProcessorFormatter

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor, WrappedLogger


def configure(level: str, **identity: str | int) -> None:
    """Sets logging up for this process; may be called again. ``identity`` (role, slot) stands on every line."""

    def identify(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        event.update(identity)
        return event

    shared: list[Processor] = [
        identify,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    render = structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"], bool_as_flag=False)
    structlog.configure(
        processors=[*shared, render],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[ProcessorFormatter.remove_processors_meta, render],
        )
    )
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
