"""Calls that may hang in the kernel or in libc, in threads that nobody waits for at the end of the program.

Must not know: what is called. Rule: whoever stops waiting is not held up, by the call nor by its thread.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_Found = TypeVar("_Found")


async def aside(call: Callable[[], _Found]) -> _Found:
    """What the call returns or raises. To be cancelled at any time; the call then ends alone."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_Found] = loop.create_future()

    def settle(found: _Found | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(found)  # type: ignore[arg-type]  # a call that returns None has that type

    def run() -> None:
        found, error = None, None
        try:
            found = call()
        except BaseException as raised:  # noqa: BLE001  # it is raised where it is awaited
            error = raised
        try:
            loop.call_soon_threadsafe(settle, found, error)
        except RuntimeError:
            return  # the loop is closed: nobody waits

    threading.Thread(target=run, daemon=True).start()
    return await future
