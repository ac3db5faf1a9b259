"""HTTP for people and monitoring, by granian (RSGI).

Must not know: what is shown. Rule: everything of granian stays in this file; it logs nothing by itself.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from granian.constants import HTTPModes, Interfaces
from granian.log import LogLevels
from granian.server.embed import Server

from nacosdns.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Callable

TEXT = "text/plain; charset=utf-8"
_CONNECT_DEADLINE_S = 1.0
_CONNECT_AGAIN_S = 0.01


class Response(NamedTuple):
    """What goes back."""

    status: int
    body: str
    content_type: str = TEXT


async def serve(host: str, port: int, respond: Callable[[str, str], Response], ready: Callable[[], None]) -> None:
    """Answers requests by ``respond(method, path)`` until cancelled; ``ready`` is called when it listens.

    StartError when the address cannot be bound.
    """

    async def application(scope: Any, protocol: Any) -> None:  # noqa: ANN401  # granian publishes no types
        response = respond(scope.method, scope.path)
        headers = [("content-type", response.content_type), ("cache-control", "no-store")]
        protocol.response_str(response.status, headers, "" if scope.method == "HEAD" else response.body)

    server = Server(
        application,
        address=host,
        port=port,
        interface=Interfaces.RSGI,
        http=HTTPModes.auto,
        websockets=False,
        log_enabled=False,
        log_level=LogLevels.critical,
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(_serve(server, f"{host}:{port}"))
        await _until_it_listens(host, port)
        ready()


async def _serve(server: Server, address: str) -> None:
    try:
        await server.serve()
    except asyncio.CancelledError:
        await server.shutdown()  # type: ignore[no-untyped-call]  # granian publishes no types
        raise
    except (OSError, RuntimeError) as error:
        raise StartError(f"web.listen {address} cannot be bound: {error}") from error


async def _until_it_listens(host: str, port: int) -> None:
    """Granian listens from a thread of its own and does not say when."""
    while True:
        try:
            async with asyncio.timeout(_CONNECT_DEADLINE_S):
                _, writer = await asyncio.open_connection(host, port)
        except (OSError, TimeoutError):
            await asyncio.sleep(_CONNECT_AGAIN_S)
        else:
            writer.close()
            return
