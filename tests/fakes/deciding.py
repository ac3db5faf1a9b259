"""The pipeline of a front as tests make it: the built-in balancers, draws that repeat, a host called ``host``."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from nacosdns.core.access import Access
from nacosdns.core.balance import BUILT_IN
from nacosdns.front_process import make_pipeline

if TYPE_CHECKING:
    from nacosdns.config import Config
    from nacosdns.core.book import Book
    from nacosdns.core.pipeline import Pipeline


def pipeline_of(config: Config, book: Book, *, allow: str = "loopback", judges: bool = True) -> Pipeline:
    """Answers from this book; ``allow`` is the one entry of server.allow, looked at only when it ``judges``."""
    return make_pipeline(
        config,
        book,
        BUILT_IN,
        random.Random(7),
        allowed=Access([allow]),
        judges=judges,
        nameserver="127.0.0.1",
        identity=b"host",
    )
