"""HTTP for people and monitoring, by granian (RSGI).

Must not know: what is shown. Rule: everything of granian stays in this file; it logs nothing by itself.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.log import LogLevels
from granian.net import SocketHolder  # type: ignore[attr-defined]  # granian publishes no types
from granian.server.embed import Server

from nacosdns.errors import StartError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

TEXT = "text/plain; charset=utf-8"
_BACKLOG = 1024


class Response(NamedTuple):
    """What goes back."""

    status: int
    body: str
    content_type: str = TEXT


class _Server(Server):
    """Granian on a socket that is open already, which it can be given only where it would open its own."""

    def __init__(self, listening: socket.socket, application: _Application) -> None:
        self._listening = listening
        super().__init__(
            application,
            interface=Interfaces.RSGI,
            http=HTTPModes.auto,
            http1_settings=HTTP1Settings(keep_alive=False),  # nobody sends a second request to one who is just leaving
            websockets=False,
            log_enabled=False,
            log_level=LogLevels.critical,
        )

    def _init_shared_socket(self) -> None:
        holder: Any = SocketHolder
        own = os.dup(self._listening.fileno())  # it closes what it is given
        vars(self).update(_sfd=own, _ssp=None, _shd=holder(own, False, _BACKLOG))


class _Application:
    """Ours, as granian calls it (RSGI)."""

    def __init__(self, respond: Callable[[str, str], Response], ready: Callable[[], None]) -> None:
        self._respond = respond
        self._ready = ready

    def __rsgi_init__(self, _loop: asyncio.AbstractEventLoop) -> None:
        self._ready()

    async def __rsgi__(self, scope: Any, protocol: Any) -> None:  # noqa: ANN401  # granian publishes no types
        response = self._respond(scope.method, scope.path)
        headers = [("content-type", response.content_type), ("cache-control", "no-store")]
        protocol.response_str(response.status, headers, "" if scope.method == "HEAD" else response.body)


async def serve(listening: socket.socket, respond: Callable[[str, str], Response], ready: Callable[[], None]) -> None:
    """Answers requests by ``respond(method, path)`` until cancelled, each by a connection of its own.

    ``ready`` is called when it begins; what it accepted is answered before it ends. StartError when it cannot be.
    """
    server = _Server(listening, _Application(respond, ready))
    try:
        await server.serve()
    except asyncio.CancelledError:
        await server.shutdown()  # type: ignore[no-untyped-call]  # granian publishes no types
        raise
    except (OSError, RuntimeError) as error:
        raise StartError(f"web cannot serve: {error}") from error
