"""Which queries are logged: none, all, failures, or one in so many.

Must not know: how a line looks, where it goes. Rule: a log that must see every query (all, a sample) does without prepared
replies, since those leave without anybody looking; "errors" needs no such thing, because an error is never prepared.
"""

from __future__ import annotations


class QueryLog:
    """``mode`` as in config [log] queries: off, all, errors, 1/N."""

    def __init__(self, mode: str) -> None:
        self.errors_only = mode == "errors"
        self._every = {"off": 0, "all": 1, "errors": 1}.get(mode) if "/" not in mode else int(mode.partition("/")[2])
        self._seen = 0

    def __repr__(self) -> str:
        return f"<QueryLog every={self._every} errors_only={self.errors_only}>"

    def __bool__(self) -> bool:
        return bool(self._every)

    @property
    def sees_everything(self) -> bool:
        """Whether no query may be answered unseen."""
        return bool(self) and not self.errors_only

    def wants(self, rcode: int) -> bool:
        """Whether this answer is to be logged; counts it."""
        if self.errors_only:
            return rcode not in {0, 3}
        self._seen += 1
        return bool(self._every) and self._seen % (self._every or 1) == 0
