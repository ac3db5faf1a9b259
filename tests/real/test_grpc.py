"""gRPC clients by the system's resolver and by an authority: all three servers are used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fakes.asking import until_says, with_resolv_conf
from fakes.running import Bridge, free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fakes.real_nacos import Provider, RealNacos

TESTS = Path(__file__).parents[1]
ADDRESSES = ("127.0.0.11", "127.0.0.12", "127.0.0.13")
ASK = f"import sys; sys.path.insert(0, {str(TESTS)!r}); from fakes.grpc_world import ask; ask(sys.argv[1], 30)"


@pytest.fixture
def served() -> Iterator[int]:
    """Three gRPC servers on one port; the port."""
    port = free_port()
    command = [sys.executable, "-m", "fakes.grpc_world", "serve", str(port), *ADDRESSES]
    servers = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(TESTS)})
    assert servers.stdout is not None
    assert servers.stdout.readline() == "ready\n"
    yield port
    servers.kill()
    servers.communicate()


def test_grpc_reaches_every_instance_by_system_resolver_and_by_authority(
    nacos: RealNacos, provider: Callable[..., Provider], service: str, served: int, tmp_path: Path
) -> None:
    provider(service, *({"ip": address, "port": served} for address in ADDRESSES))
    port = free_port()
    running = Bridge(
        tmp_path,
        text=f'[nacos]\nservers = ["{nacos.address}"]\n',
        modules={},
        port=port,
        listen=f'"127.78.0.1:53", "127.0.0.1:{port}"',
    )
    try:
        until_says(running.up().port, f"{service}.nacos", set(ADDRESSES))
        by_system = with_resolv_conf(tmp_path, "nameserver 127.78.0.1\n", ASK, f"dns:///{service}.nacos:{served}")
        by_authority = subprocess.run(
            [sys.executable, "-c", ASK, f"dns://127.0.0.1:{port}/{service}.nacos:{served}"],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            env={**os.environ, "GRPC_DNS_RESOLVER": "ares"},
        ).stdout
    finally:
        running.close()

    assert set(json.loads(by_system)) == set(ADDRESSES)
    assert set(json.loads(by_authority)) == set(ADDRESSES)
