"""Names that URLs, caches and logs escape, by way of a real Nacos, the disk and the query log (S06)."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

from fakes.asking import addresses, cli, until_says
from fakes.running import Bridge, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fakes.real_nacos import Provider, RealNacos

    StartBridge = Callable[..., Bridge]
    StartProvider = Callable[..., Provider]

ODD = {"{{1}}": "10.0.0.1", "a%2Fb": "10.0.0.2", "a+b": "10.0.0.3", "a%20b": "10.0.0.4", "a&b=c": "10.0.0.5"}
PLAIN = "order"


def test_s06_each_odd_name_is_itself_in_nacos_in_dns_on_disk_and_in_the_log(
    nacos: RealNacos, provider: StartProvider, bridge: StartBridge, tmp_path: Path
) -> None:
    for name, address in ODD.items():
        provider(name, {"ip": address, "port": 80})
    provider(PLAIN, {"ip": "10.0.0.9", "port": 80})
    running = bridge(nacos, text='[log]\nqueries = "all"\n')
    for name, address in ODD.items():
        until_says(running.port, f"{name}.nacos", {address}, seconds=20)
        assert address in json.dumps(cli(running, "ask", f"{name}.nacos"))
    until_says(running.port, f"DEFAULT_GROUP@@{PLAIN}.nacos", {"10.0.0.9"}, seconds=20)
    nobodys = [
        addresses(running.port, f"{name}.nacos") for name in (f"@@{PLAIN}", f"{PLAIN}@@", f"OTHER@@{PLAIN}", "a/b", "1")
    ]
    logged = running.said("event=query ")
    listed = json.dumps(cli(running, "services"))
    running.signal(signal.SIGTERM)
    code = running.wait()

    assert nobodys == [[]] * 5
    assert all(name in listed for name in ODD)
    assert all(any(f"{name.lower()}.nacos." in line for line in logged) for name in ODD)
    assert code == 0

    alone = Bridge(
        tmp_path,
        text='[nacos]\nservers = ["127.0.0.1:1"]\n',
        modules={},
        port=running.port,
        directory=running.directory,
    )
    try:
        until(lambda: alone.said("front.reads"), 30, "the first front")
        from_disk = {name: addresses(alone.port, f"{name}.nacos") for name in ODD}
    finally:
        alone.close()

    assert from_disk == {name: [address] for name, address in ODD.items()}
