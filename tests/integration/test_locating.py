"""The names of the Nacos servers are found without ourselves, and remembered (S44)."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from fakes.loop import on_a_loop
from fakes.nacos_server import FakeNacos
from fakes.registry_listener import running
from fakes.running import Bridge
from fakes.upstream import StubUpstream
from nacosdns import locating
from nacosdns.config import Cache, Config, Forward, Host, Server
from nacosdns.edge import hostnames
from nacosdns.edge.nacos import NacosRegistry
from nacosdns.edge.nacos_http import Settings
from nacosdns.errors import RegistryDown, UpstreamError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME = "nacos.ext.test"
OURS = f"127.64.{os.getpid() >> 8 & 255}.{os.getpid() & 127 | 1}"
"""An address of loopback that no other process has port 53 of."""


class Quiet:
    """A log that is kept."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def __getattr__(self, level: str):
        return lambda event, **_: self.events.append(event)


@pytest.fixture
def upstream() -> Iterator[StubUpstream]:
    with StubUpstream() as stub:
        stub.answer(NAME, "A", "192.0.2.5", "192.0.2.6")
        yield stub


def configured(tmp_path: Path, *upstreams: str, resolv: str = "nameserver 127.0.0.1\n") -> Config:
    """A host whose resolv.conf names us, or says ``resolv``."""
    file = tmp_path / "resolv.conf"
    file.write_text(resolv, encoding="ascii")
    return Config(
        server=Server(listen=("127.0.0.1:53",)),
        cache=Cache(dir=str(tmp_path)),
        forward=Forward(upstreams=upstreams, resolv_conf=str(file)),
        host=Host(resolv_conf=str(file)),
    )


def find(config: Config, name: str = NAME) -> tuple[str, ...]:
    return asyncio.run(locating.Locator(config, Quiet()).addresses(name))


def test_where_libc_would_ask_us_an_upstream_is_asked(tmp_path: Path, upstream: StubUpstream) -> None:
    assert find(configured(tmp_path, upstream.address)) == ("192.0.2.5", "192.0.2.6")
    assert upstream.count(NAME, "A") == 1


def test_where_libc_does_not_lead_to_us_libc_finds_the_name(
    tmp_path: Path, upstream: StubUpstream, monkeypatch
) -> None:
    asked: list[str] = []

    def libc(name: str, *_: object, **__: object) -> list[object]:
        asked.append(name)
        return [(10, 1, 6, "", ("2001:db8::1", 0, 0, 0)), (2, 1, 6, "", ("192.0.2.9", 0))]

    monkeypatch.setattr("socket.getaddrinfo", libc)
    config = configured(tmp_path, upstream.address, resolv="nameserver 192.0.2.53\n")

    assert find(config) == ("192.0.2.9", "2001:db8::1")
    assert asked == [NAME]
    assert upstream.count(NAME) == 0


def test_the_hosts_file_comes_first(tmp_path: Path, upstream: StubUpstream, monkeypatch) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text(
        f"# x {NAME}\nnonsense {NAME}\n2001:db8::7 other {NAME}\n192.0.2.7\t{NAME.upper()}. {NAME} # y\n",
        encoding="ascii",
    )
    monkeypatch.setattr(hostnames.in_hosts_file, "__defaults__", (str(hosts),))

    assert find(configured(tmp_path, upstream.address)) == ("192.0.2.7", "2001:db8::7")
    assert upstream.count(NAME) == 0


def test_an_address_is_itself(tmp_path: Path) -> None:
    assert find(configured(tmp_path), "10.0.0.5") == ("10.0.0.5",)
    assert find(configured(tmp_path), "2001:db8::1") == ("2001:db8::1",)


def test_the_last_good_addresses_outlive_a_restart_and_a_dead_upstream(tmp_path: Path, upstream: StubUpstream) -> None:
    config = configured(tmp_path, upstream.address)
    assert find(config) == ("192.0.2.5", "192.0.2.6")
    upstream.is_mute = True

    assert find(config) == ("192.0.2.5", "192.0.2.6")
    assert json.loads((tmp_path / locating.FILE).read_text(encoding="utf-8")) == {NAME: ["192.0.2.5", "192.0.2.6"]}


@pytest.mark.parametrize("content", ["", "{", '{"a": 1}', '{"nacos.ext.test": ["evil"]}', "[]"])
def test_a_damaged_memory_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / locating.FILE).write_text(content, encoding="ascii")
    with pytest.raises(RegistryDown, match=r"the name nacos\.ext\.test cannot be found"):
        find(configured(tmp_path))


def test_a_denial_does_not_make_the_last_good_addresses_wrong(tmp_path: Path, upstream: StubUpstream) -> None:
    config = configured(tmp_path, upstream.address)
    find(config)
    upstream.rcode(NAME, "A", "NXDOMAIN")

    assert find(config) == ("192.0.2.5", "192.0.2.6")


def test_a_changed_address_is_taken_and_kept(tmp_path: Path, upstream: StubUpstream) -> None:
    config = configured(tmp_path, upstream.address)
    find(config)
    upstream.answer(NAME, "A", "192.0.2.77")

    assert find(config) == ("192.0.2.77",)
    upstream.is_mute = True
    assert find(config) == ("192.0.2.77",)


def test_many_who_ask_at_once_ask_the_upstream_once(tmp_path: Path, upstream: StubUpstream) -> None:
    locator = locating.Locator(configured(tmp_path, upstream.address), Quiet())

    async def ask() -> list[tuple[str, ...]]:
        return await asyncio.gather(*(locator.addresses(NAME) for _ in range(20)))

    assert set(asyncio.run(ask())) == {("192.0.2.5", "192.0.2.6")}
    assert upstream.count(NAME, "A") == 1


def test_ourselves_are_never_asked(tmp_path: Path) -> None:
    with pytest.raises(RegistryDown, match="no resolver to ask"):
        find(configured(tmp_path, "127.0.0.1", "resolv.conf"))


def test_a_resolver_that_fails_makes_the_next_one_be_asked_and_a_denial_does_not(upstream: StubUpstream) -> None:
    with StubUpstream() as broken, StubUpstream() as other:
        broken.rcode(NAME, "A", "SERVFAIL")
        other.answer("gone.test", "A", "192.0.2.66")
        ports = [
            (stub.address.rpartition(":")[0], int(stub.address.rpartition(":")[2]))
            for stub in (broken, upstream, other)
        ]

        assert asyncio.run(hostnames.ask(NAME, ports)) == ("192.0.2.5", "192.0.2.6")
        assert asyncio.run(hostnames.ask("gone.test", ports[1:])) == ()
        assert other.count() == 0
        with pytest.raises(UpstreamError, match="rcode 2"):
            asyncio.run(hostnames.ask(NAME, ports[:1]))


def test_a_name_without_a_dot_is_tried_with_the_search_list_first(upstream: StubUpstream) -> None:
    upstream.answer("nacos.corp.example", "A", "192.0.2.8")
    host, _, port = upstream.address.rpartition(":")
    ask = lambda name: asyncio.run(hostnames.ask(name, [(host, int(port))], ("a.example", "corp.example.")))  # noqa: E731

    assert ask("nacos") == ("192.0.2.8",)
    assert ask(NAME) == ("192.0.2.5", "192.0.2.6")
    assert upstream.count("a.example") == 0


def test_an_alias_is_followed_and_ipv6_is_asked_when_there_is_no_ipv4(upstream: StubUpstream) -> None:
    upstream.answer_chain("alias.test", "A", "alias.test. 60 IN CNAME real.test.", "real.test. 60 IN A 192.0.2.8")
    upstream.answer("six.test", "AAAA", "2001:db8::8")
    host, _, port = upstream.address.rpartition(":")

    assert asyncio.run(hostnames.ask("alias.test", [(host, int(port))])) == ("192.0.2.8",)
    assert asyncio.run(hostnames.ask("six.test", [(host, int(port))])) == ("2001:db8::8",)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate for ``NAME`` that signs itself, and its key."""
    where = tmp_path_factory.mktemp("tls")
    cert, key = str(where / "cert.pem"), str(where / "key.pem")
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    words = ["-subj", "/CN=nacos", "-addext", f"subjectAltName=DNS:{NAME}", "-keyout", key, "-out", cert]
    subprocess.run(["openssl", "req", *kind, *words], check=True, capture_output=True)
    return cert, key


async def at_home(name: str) -> tuple[str, ...]:
    """An address where nobody is, and the one of the fake."""
    del name
    return ("127.0.0.9", "127.0.0.1")


def registry(server: str, **settings: object) -> NacosRegistry:
    quick = {"connect_timeout_s": 2.0, "locate": at_home, **settings}
    return NacosRegistry(Settings(servers=(server,), **quick), ("public",), Quiet())


@on_a_loop
async def test_a_server_is_reached_at_the_second_of_its_addresses_by_http_and_grpc() -> None:
    async with FakeNacos(users={"dns": "secret"}).running() as nacos:
        edge = registry(f"{NAME}:{nacos.port}", username="dns", password="secret")
        async with running(edge) as listener:
            assert listener.events == ["connected public"]
        assert len(nacos.logins) == 1


@on_a_loop
async def test_tls_is_still_for_the_servers_name_and_not_for_its_address(certificate: tuple[str, str]) -> None:
    async with FakeNacos(certificate=certificate).running() as nacos:
        async with running(registry(f"{NAME}:{nacos.port}", ca_file=certificate[0])) as right:
            pass
        async with running(registry(f"other.test:{nacos.port}", ca_file=certificate[0]), connected="") as wrong:
            await wrong.heard("disconnected public")

    assert right.events == ["connected public"]
    assert wrong.events == ["disconnected public"]


@on_a_loop
async def test_a_server_whose_name_nobody_knows_is_down_and_tried_again() -> None:
    found: list[str] = []

    async def late(name: str) -> tuple[str, ...]:
        found.append(name)
        if len(found) < 3:
            raise RegistryDown(f"the name {name} cannot be found")
        return ("127.0.0.1",)

    async with (
        FakeNacos().running() as nacos,
        running(registry(f"{NAME}:{nacos.port}", locate=late), connected="") as listener,
    ):
        await listener.heard("connected public")

    assert listener.events[:2] == ["disconnected public", "connected public"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: port 53")
def test_s44_a_bridge_finds_its_nacos_by_an_upstream_and_with_that_one_down_at_the_next_start_by_memory(
    tmp_path: Path,
) -> None:
    """resolv.conf names only us; the registry is never asked for its own name."""

    async def run() -> list[str]:
        async with FakeNacos().running() as nacos:
            nacos.services[("public", "DEFAULT_GROUP", "orders")] = []
            server = f'"{NAME}:{nacos.port}"'
            with StubUpstream() as stub:
                stub.answer(NAME, "A", "127.0.0.1")
                await asyncio.to_thread(start_and_connect, stub.address, server)
                assert stub.count(NAME, "A") >= 1
                stub.is_mute = True
                await asyncio.to_thread(start_and_connect, stub.address, server)
            return [str(one.body) for one in nacos.received]

    def start_and_connect(upstream: str, server: str) -> None:
        resolv = tmp_path / "resolv.conf"
        text = (
            f'[nacos]\nservers = [{server}]\n[forward]\nupstreams = ["{upstream}"]\n[host]\nresolv_conf = "{resolv}"\n'
        )
        resolv.write_text(f"nameserver {OURS}\n", encoding="ascii")
        running = Bridge(tmp_path, text=text, modules={}, directory=tmp_path / "state", listen=f'"{OURS}:53"')
        try:
            running.wait_for("registry.connected", seconds=30)
        finally:
            running.close()

    received = asyncio.run(run())

    assert not [body for body in received if "nacos.ext" in body]
    assert (tmp_path / "state" / locating.FILE).exists()
