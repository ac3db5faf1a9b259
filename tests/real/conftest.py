"""A real Nacos for every test here; without Java or Maven they are skipped, or fail when NACOSDNS_REQUIRE_REAL=1."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any

import pytest

from fakes.real_nacos import Provider, RealNacos, missing_tools
from fakes.running import Bridge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    StartNacos = Callable[..., RealNacos]
    StartProvider = Callable[..., Provider]
    StartBridge = Callable[..., Bridge]

_names = (f"s{number}" for number in itertools.count())


@pytest.fixture(scope="session")
def nacos_can_run() -> None:
    missing = missing_tools()
    if missing and os.environ.get("NACOSDNS_REQUIRE_REAL") == "1":
        pytest.fail(f"a real Nacos needs {', '.join(missing)}")
    if missing:
        pytest.skip(f"a real Nacos needs {', '.join(missing)}")


@pytest.fixture(scope="session")
def nacos(nacos_can_run: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNacos]:
    """The server that tests share; it pushes at once. Leave it running and use a service name of your own."""
    server = RealNacos(tmp_path_factory.mktemp("nacos"))
    try:
        yield server.start()
    finally:
        server.kill()


@pytest.fixture(scope="module")
def start_nacos(nacos_can_run: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartNacos]:
    """Starts a server of one's own: ``start_nacos(auth=…, push_delay_ms=…)``; it ends with the module at the latest."""
    servers: list[RealNacos] = []

    def start(**settings: Any) -> RealNacos:
        servers.append(RealNacos(tmp_path_factory.mktemp("nacos"), **settings))
        return servers[-1].start()

    yield start
    for server in servers:
        server.kill()


@pytest.fixture
def provider(tmp_path: object, nacos: RealNacos) -> Iterator[StartProvider]:
    """Starts a provider: ``provider("orders", {"ip": …, "port": …}, …, nacos=…, group=…)``; killed at the end."""
    providers: list[Provider] = []

    def start(service: str, *instances: dict[str, Any], **where: Any) -> Provider:
        providers.append(Provider(where.pop("nacos", nacos), tmp_path, service, **where))  # type: ignore[arg-type]
        return providers[-1].start(*instances)

    yield start
    for one in providers:
        one.kill()


@pytest.fixture
def service() -> str:
    """A service name that no other test uses."""
    return next(_names)


@pytest.fixture
def bridge(tmp_path: Path) -> Iterator[StartBridge]:
    """Starts the real program: ``bridge(nacos, text=…)``; ended with the test."""
    bridges: list[Bridge] = []

    def start(nacos: RealNacos | None, text: str = "", wait: bool = True, **how: Any) -> Bridge:  # noqa: FBT002
        servers = f'"{nacos.address}"' if nacos is not None else ""
        place = tmp_path / f"b{len(bridges)}"
        place.mkdir()
        bridges.append(Bridge(place, text=f"[nacos]\nservers = [{servers}]\n{text}", modules={}, **how))
        return bridges[-1].up() if wait else bridges[-1]

    yield start
    for one in bridges:
        one.close()
