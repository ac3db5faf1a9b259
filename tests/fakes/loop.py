"""Runs a test that is a coroutine, and fails it when anything was left over on its loop."""

from __future__ import annotations

import asyncio
import functools
import gc
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A coroutine as a test: own loop, debug mode; exceptions that nobody retrieved and tasks left over fail it."""

    @functools.wraps(test)
    def run(*args: object, **kwargs: object) -> None:
        complaints: list[str] = []

        async def scenario() -> None:
            loop = asyncio.get_running_loop()
            loop.slow_callback_duration = 60
            loop.set_exception_handler(lambda _, context: complaints.append(str(context)))
            await test(*args, **kwargs)
            gc.collect()
            if others := asyncio.all_tasks() - {asyncio.current_task()}:
                _, left = await asyncio.wait(others, timeout=1.0)  # gRPC ends a call a moment after its channel
                complaints.extend(f"left over: {task}" for task in left)

        asyncio.run(scenario(), debug=True)
        gc.collect()

        if complaints:
            pytest.fail("\n".join(complaints))

    return run


LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def run_on(kind: str, seconds: float) -> Callable[[Coroutine[object, object, None]], None]:
    """Runs coroutines on one of ``LOOPS``, each for so long at most."""

    def run(work: Coroutine[object, object, None]) -> None:
        with asyncio.Runner(loop_factory=LOOPS[kind]) as runner:
            runner.run(asyncio.wait_for(work, seconds))

    return run


async def until(true: Callable[[], bool], within_s: float = 5.0) -> None:
    """Returns when the condition holds; TimeoutError when it does not in time."""
    async with asyncio.timeout(within_s):
        while not true():
            await asyncio.sleep(0.01)
