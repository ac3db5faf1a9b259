"""Looks through the whole book for addresses that somebody asks for by name, slice by slice, so that queries come first.

Must not know: what a question is, how it is answered. Rules: one search at a time, for all who wait when it begins; who
waits is bounded, and whoever was taken in is handed back exactly once.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nacosdns.core.book import Book

WAITING_MAX = 200
ADDRESSES_A_SEARCH = 16

Item = TypeVar("Item")


class Searcher(Generic[Item]):
    """``land`` gets those who waited, when ``book.has_address`` can say it."""

    def __init__(self, book: Book, land: Callable[[list[Item]], None]) -> None:
        self._book = book
        self._land = land
        self._waiting: dict[str, list[Item]] = {}
        self._wanted: list[str] = []
        self._steps: Iterator[None] | None = None
        self._size = 0

    def __repr__(self) -> str:
        return f"<Searcher {self._size} wait for {len(self._waiting)} addresses>"

    def wait(self, address: str, item: Item) -> bool:
        """Takes it in; False when too many wait already."""
        if self._size >= WAITING_MAX:
            return False
        self._waiting.setdefault(address, []).append(item)
        self._size += 1
        if self._steps is None:
            self._begin()
        return True

    def _begin(self) -> None:
        self._wanted = list(self._waiting)[:ADDRESSES_A_SEARCH]
        self._steps = self._book.search(self._wanted)
        asyncio.get_running_loop().call_soon(self._step)

    def _step(self) -> None:
        assert self._steps is not None
        if next(self._steps, self) is None:
            asyncio.get_running_loop().call_soon(self._step)
            return
        self._steps = None
        found = [item for address in self._wanted for item in self._waiting.pop(address)]
        self._size -= len(found)
        self._land(found)
        if self._waiting and self._steps is None:
            self._begin()
