"""The real program under a real configuration: plain, open to networks by ``allow``, with two fronts."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from servers import NAMES, await_answer

if TYPE_CHECKING:
    from servers import Ground, Server

PLAIN, OPEN, TWO_FRONTS = "nacosdns", "nacosdns on 0.0.0.0 with allow", "nacosdns, two fronts"
VARIANTS = (PLAIN, OPEN, TWO_FRONTS)
CONFIG = """
[server]
listen = ["{listen}:{port}"]
allow = ["loopback", "link", "private"]
fronts = {fronts}
user = ""
[nacos]
servers = []
[forward]
upstreams = ["127.0.0.1:{upstream}"]
[web]
listen = "127.0.0.1:{web}"
[cache]
dir = "{state}"
[log]
level = "error"
"""
STATIC = """
[[static]]
name = "svc{0:03d}"
instances = [{{ ip = "10.0.0.1", port = 80 }}, {{ ip = "10.0.0.2", port = 80 }}, {{ ip = "10.0.0.3", port = 80 }}]
"""


def start_ourselves(ground: Ground, variant: str, upstream: int) -> Server:
    """Start the program of this checkout as one of the VARIANTS."""
    port = ground.free_port()
    number = VARIANTS.index(variant)
    text = CONFIG.format(
        listen="0.0.0.0" if variant == OPEN else "127.0.0.1",  # noqa: S104 -- the row is about that
        port=port,
        fronts=2 if variant == TWO_FRONTS else 1,
        upstream=upstream,
        web=ground.free_port(),
        state=ground.place / f"state{number}",
    )
    config = ground.write(f"nacosdns{number}.toml", text + "".join(map(STATIC.format, range(NAMES))))
    return ground.start(variant, port, sys.executable, "-m", "nacosdns.cli", "run", "-c", config)


def await_ourselves(server: Server) -> None:
    """Return when the program answers for its services."""
    await_answer(server, "svc000.nacos")
