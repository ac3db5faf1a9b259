"""Conductor 4: shows metrics and health by HTTP.

Must not know: services, queries, Nacos; it only reads the pages of the others. Rule: health rests on heartbeats and
the canary, never on Nacos, upstreams or the disk.
"""

from __future__ import annotations

import asyncio
import socket
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from nacosdns import child
from nacosdns import config as configuration
from nacosdns.core import metrics
from nacosdns.edge import http, sockets
from nacosdns.edge.clock import HostClock
from nacosdns.edge.page import Page, Role, State
from nacosdns.errors import ControlError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nacosdns.config import Config

CANARY_FRESH_S = 3.0
HEARTBEAT_FRESH_S = 3.0
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_NS = 1_000_000_000


def unhealthy(supervisor: Page, now_ns: int) -> str:
    """Why the bridge is not alive; ``""`` when it is: its supervisor's loop turns."""
    age_s = (now_ns - supervisor.beat_ns) / _NS
    return f"the supervisor's last heartbeat is {age_s:.1f} s old" if age_s > HEARTBEAT_FRESH_S else ""


def unready(config: Config, supervisor: Page, others: Sequence[Page], now_ns: int) -> str:
    """Why nobody should be sent here; ``""`` when a query through the real socket is answered.

    A node that knows no service yet waits for its first snapshot, ``ready_timeout_s`` at most.
    """
    if not supervisor.canary_ns:
        return "the canary was never answered"
    age_s = (now_ns - supervisor.canary_ns) / _NS
    if age_s > CANARY_FRESH_S:
        return f"the canary was last answered {age_s:.1f} s ago"
    up_s = (now_ns - supervisor.started_ns) / _NS
    has_registry = bool(config.nacos.servers or config.nacos.endpoint)
    if not has_registry or up_s >= config.server.ready_timeout_s:
        return ""
    index = metrics.SERVICES_KNOWN.index()
    known = any(page.counters[index] for page in others if page.state is State.READY)
    return "" if known else f"no service is known yet, {up_s:.1f} s after the start"


class Web:
    """The pages of all processes by slot, shown."""

    def __init__(self, own: child.Child) -> None:
        self._child = own
        self._clock = HostClock()
        self._pages: Mapping[int, Page] = {slot: Page(fd) for slot, fd in enumerate(own.setup.pages) if fd >= 0}
        self._version = _version()

    def __repr__(self) -> str:
        return f"<Web {len(self._pages)} pages>"

    async def run(self) -> None:
        """Serves until cancelled."""
        await http.serve(self._listening(), self.respond, self._child.ready)

    def _listening(self) -> socket.socket:
        """The supervisor's socket; one of our own when a supervisor of an earlier release started us."""
        fds = [fd for one in self._child.setup.sockets for fd, _ in one.tcp]
        if fds:
            return socket.socket(fileno=fds[0])
        listen = self._child.config.web.listen
        return sockets.listening(sockets.Endpoint(*configuration.host_port(listen)), "web.listen")

    def respond(self, method: str, path: str) -> http.Response:
        """The answer to one request."""
        now_ns = self._clock.now_ns()
        known = {"/metrics": self._metrics, "/healthz": self._health, "/readyz": self._readiness}.get(path)
        if known is None:
            response = http.Response(404, "not here; see /metrics, /healthz and /readyz\n")
        elif method not in {"GET", "HEAD"}:
            response = http.Response(405, "only GET and HEAD\n")
        else:
            response = known(now_ns)
        word = path.removeprefix("/") if known else "other"
        self._child.counters[metrics.WEB_REQUESTS.index(word, str(response.status))] += 1
        return response

    def _metrics(self, _now_ns: int) -> http.Response:
        self._child.flush()
        views = [
            metrics.PageView(page.role.word, slot, page.read_counters())
            for slot, page in self._pages.items()
            if page.role is not Role.NONE
        ]
        info = {"version": self._version, "config": configuration.digest(self._child.config)}
        return http.Response(200, metrics.render(views, info), METRICS_TYPE)

    def _health(self, now_ns: int) -> http.Response:
        return _verdict("alive", unhealthy(self._pages[0], now_ns))

    def _readiness(self, now_ns: int) -> http.Response:
        others = [page for slot, page in self._pages.items() if slot]
        return _verdict("ready", unready(self._child.config, self._pages[0], others, now_ns))

    def configure(self, config: Config, password: str) -> None:
        """Nothing to do: what is shown is read at each request, and a new address is a new process."""

    def activate(self, slots: tuple[int, ...]) -> None:
        """Only fronts read sockets."""

    async def drain(self, deadline_s: float) -> None:
        """A request is answered within the turn of the loop that it came in."""
        await asyncio.sleep(0)

    async def answer(self, verb: str, arguments: dict[str, object]) -> object:
        """No control request is for us."""
        raise ControlError(f"web does not know {verb}")


def _verdict(good: str, fault: str) -> http.Response:
    return http.Response(503, f"not {good}: {fault}\n") if fault else http.Response(200, f"{good}\n")


def _version() -> str:
    try:
        return version("nacosdns")
    except PackageNotFoundError:
        return "unknown"


if __name__ == "__main__":
    child.main(Web)
