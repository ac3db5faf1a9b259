"""The HTTP side of the Nacos servers: which there are, logging in, asking for their version.

Must not know: gRPC, the SDK, services. Rules: a password or token stands in a request body or header, never in a URL,
a log line or an error; one refused password is tried again only after a growing pause or when it changes; every
request is counted and has a deadline.
"""

from __future__ import annotations

import asyncio
import http.client
import io
import os
import re
import ssl
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast
from urllib.parse import urlencode, urlsplit

import msgspec

from nacosdns.errors import ConfigError, RegistryDown, RegistryElsewhere, RegistryError, RegistryRefused

if TYPE_CHECKING:
    import random
    import socket
    from collections import Counter
    from collections.abc import Awaitable, Callable, Sequence

    from nacosdns.config import Nacos
    from nacosdns.ports import Log

HTTP_PORT = 8848
ENDPOINT_PORT = 8080
GRPC_PORT_ABOVE_HTTP = 1000
ENDPOINT_EVERY_S = 30.0
_BODY_BYTES_MAX = 1 << 20
_ERRNO = re.compile(r"\[Errno (\d+)\]")
_LIBC_NUMBER = re.compile(r"^\[Errno -\d+\] ")  # what getaddrinfo says has its words behind it
LIFE_S = 18_000.0  # of a token, where the server does not say
_LOGIN_PATHS = ("/v1/auth/users/login", "/v3/auth/user/login")  # Nacos 1 and 2; Nacos 3.2 has only the second
_STATE_PATHS = ("/v1/console/server/state", "/v3/admin/core/state")
_RENEW_AT = 0.8  # part of a token's life after which a new one is fetched
_RENEW_AGAIN_S = 5.0  # a token younger than this is not renewed because a server rejected it


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to reach Nacos. Plain values of the section [nacos]; ``reread_password`` reads the password file again.

    ``password_file`` is only for what is said when there is no password.

    ``locate`` gives the addresses of a host name; without it, libc does.
    """

    servers: tuple[str, ...] = ("127.0.0.1:8848",)
    endpoint: str = ""
    context_path: str = "/nacos"
    username: str = ""
    password: str = field(default="", repr=False)
    password_file: str = ""
    reread_password: Callable[[], str] | None = None
    locate: Callable[[str], Awaitable[tuple[str, ...]]] | None = None
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    connect_timeout_s: float = 3.0
    request_timeout_s: float = 3.0
    list_timeout_s: float = 10.0
    silence_s: float = 10.0


def settings_of(
    section: Nacos,
    password: str,
    reread_password: Callable[[], str] | None = None,
    locate: Callable[[str], Awaitable[tuple[str, ...]]] | None = None,
) -> Settings:
    """The settings that a section [nacos] means."""
    return Settings(
        servers=section.servers,
        endpoint=section.endpoint,
        context_path=section.context_path,
        username=section.username,
        password=password,
        password_file=section.password_file,
        reread_password=reread_password,
        locate=locate,
        ca_file=section.ca_file,
        cert_file=section.cert_file,
        key_file=section.key_file,
    )


@dataclass(frozen=True, slots=True)
class Server:
    """One Nacos server. ``port`` is its HTTP port; an IPv6 ``host`` stands without brackets."""

    host: str
    port: int = HTTP_PORT
    secure: bool = False

    def __str__(self) -> str:
        return _join(self.host, self.port)

    @property
    def grpc_port(self) -> int:
        """Where it speaks gRPC: no server tells, it is always so far above."""
        return self.port + GRPC_PORT_ABOVE_HTTP

    @property
    def grpc_target(self) -> str:
        """Host and port of gRPC, in the form of a URL's authority."""
        return _join(self.host, self.grpc_port)

    @property
    def url(self) -> str:
        """Scheme and authority of its HTTP side."""
        return f"{'https' if self.secure else 'http'}://{self}"


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_server(text: str, *, key: str = "nacos.servers", default_port: int = HTTP_PORT) -> Server:
    """Reads ``host``, ``host:port``, ``[v6]:port``, each with or without ``http://`` or ``https://``; else ConfigError."""
    if text.count(":") > 1 and "[" not in text and "//" not in text:
        raise ConfigError(
            f"{text!r} is ambiguous", key=key, remedy=f"put an IPv6 address in brackets: [{text}]:{default_port}"
        )
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname or "", parts.port or default_port
    except ValueError as error:
        raise ConfigError(f"{text!r} is no server: {error}", key=key, remedy=f"write host:{default_port}") from error
    extra = parts.path.strip("/") or parts.query or parts.fragment or parts.username
    if extra or not host or host != host.strip() or " " in host or parts.scheme not in ("http", "https"):
        raise ConfigError(
            f"{text!r} is no server", key=key, remedy=f"write host:{default_port}; a path belongs in context_path"
        )
    return Server(host, port, secure=parts.scheme == "https")


def client_tls(settings: Settings) -> ssl.SSLContext | None:
    """What https to a server uses; None without certificates in the settings. ConfigError when they cannot be read."""
    if bool(settings.cert_file) != bool(settings.key_file):
        raise ConfigError("cert_file and key_file belong together", key="nacos.cert_file", remedy="set both or none")
    if not (settings.ca_file or settings.cert_file):
        return None
    try:
        context = ssl.create_default_context(cafile=settings.ca_file or None)
        if settings.cert_file:
            context.load_cert_chain(settings.cert_file, settings.key_file or None)
    except (OSError, ssl.SSLError) as error:
        remedy = "check ca_file, cert_file and key_file"
        raise ConfigError(f"certificates cannot be used: {error}", key="nacos.ca_file", remedy=remedy) from error
    return context


class _Received:
    """Bytes already received, in the shape that http.client reads a response from."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)


async def fetch(
    url: str,
    *,
    form: dict[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
    timeout_s: float = 3.0,
    addresses: Sequence[str] = (),
) -> tuple[int, bytes]:
    """One request, GET or a POST of ``form``: status and body. RegistryDown when there is no answer in time.

    ``addresses`` are those of its host, where they are known; certificates are still those of the host's name.
    """
    parts = urlsplit(url)
    secure = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
    port = parts.port or (443 if secure else 80)
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await _open(parts.hostname or "", port, secure, addresses)
            try:
                writer.write(_request(parts.netloc, f"{parts.path}?{parts.query}" if parts.query else parts.path, form))
                data = await _read_all(reader)
            finally:
                writer.transport.abort()
        return _response(data)
    except TimeoutError as error:
        raise RegistryDown(f"{parts.netloc} did not answer within {timeout_s:g} s") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise RegistryDown(f"{parts.netloc} cannot be asked: {in_plain_words(error)}") from error


def in_plain_words(error: Exception) -> str:
    """What the kernel or a library says, without numbers of errors and what Python was about to do."""
    said = str(error)
    if numbers := dict.fromkeys(_ERRNO.findall(said)):  # asyncio may have tried several addresses
        said = ", ".join(os.strerror(int(number)) for number in numbers)
    said = _LIBC_NUMBER.sub("", said)
    return said if said[:2].isupper() else said[:1].lower() + said[1:]


async def _open(
    name: str, port: int, secure: ssl.SSLContext | None, addresses: Sequence[str]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to the first address that takes one."""
    failure: OSError | None = None
    for address in addresses or (name,):
        try:
            server_hostname = name if secure else None
            return await asyncio.open_connection(address, port, ssl=secure, server_hostname=server_hostname)
        except OSError as error:
            failure = error
    raise failure or OSError("no address")


def _request(host: str, path: str, form: dict[str, str] | None) -> bytes:
    body = urlencode(form).encode() if form else b""
    lines = [
        f"{'POST' if form else 'GET'} {path or '/'} HTTP/1.1",
        f"Host: {host}",
        "Connection: close",
        "User-Agent: nacosdns",
    ]
    if form:
        lines += ["Content-Type: application/x-www-form-urlencoded", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    data = bytearray()
    while chunk := await reader.read(65536):
        data += chunk
        if len(data) > _BODY_BYTES_MAX:
            raise http.client.HTTPException(f"more than {_BODY_BYTES_MAX} bytes")
    return bytes(data)


def _response(data: bytes) -> tuple[int, bytes]:
    response = http.client.HTTPResponse(cast("socket.socket", _Received(data)))
    response.begin()
    return response.status, response.read()


class Backoff:
    """Waits that double from ``first_s`` to ``cap_s``, each shortened by up to half at random: no two hosts march in step."""

    def __init__(self, first_s: float, cap_s: float, rng: random.Random) -> None:
        self._first_s = first_s
        self._cap_s = cap_s
        self._rng = rng
        self._steps = 0

    def next_s(self) -> float:
        """The next wait in seconds."""
        wait_s = min(self._cap_s, self._first_s * 2.0**self._steps)
        self._steps = min(self._steps + 1, 30)
        return wait_s * self._rng.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Begins with the first wait again."""
        self._steps = 0


class Web:
    """The servers by HTTP: their list and their version."""

    def __init__(self, settings: Settings, requests: Counter[str]) -> None:
        self._settings = settings
        self._requests = requests
        self.tls = client_tls(settings)
        self.context_path = "/".join(["", *filter(None, settings.context_path.split("/"))])
        self._endpoint = (
            parse_server(settings.endpoint, key="nacos.endpoint", default_port=ENDPOINT_PORT)
            if settings.endpoint
            else None
        )
        self.servers = () if self._endpoint else tuple(parse_server(text) for text in settings.servers)
        if not self.servers and not self._endpoint:
            raise ConfigError("no server is given", key="nacos.servers", remedy="name one, or leave Nacos out")
        self._listed_at = -ENDPOINT_EVERY_S
        self._turn = asyncio.Lock()

    async def request(
        self, kind: str, server: Server, path: str, form: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """One counted request below the context path of a server."""
        self._requests[kind] += 1
        url = f"{server.url}{self.context_path}{path}"
        addresses = await self.addresses(server)
        timeout_s = self._settings.request_timeout_s
        return await fetch(url, form=form, tls=self.tls, timeout_s=timeout_s, addresses=addresses)

    async def addresses(self, server: Server) -> tuple[str, ...]:
        """Where a server is; empty when libc is to find it. RegistryDown when nobody tells."""
        return await self._settings.locate(server.host) if self._settings.locate else ()

    async def refresh(self) -> None:
        """Reads the list of the address server when it is due. RegistryDown only when no list is known at all."""
        if self._endpoint is None:
            return
        async with self._turn:
            if time.monotonic() - self._listed_at >= ENDPOINT_EVERY_S:
                self._listed_at = time.monotonic()
                await self._read_list(self._endpoint)

    async def _read_list(self, endpoint: Server) -> None:
        try:
            self.servers = await self._listed(endpoint)
        except (RegistryDown, ConfigError, UnicodeDecodeError) as error:
            if not self.servers:
                self._listed_at = -ENDPOINT_EVERY_S
                raise RegistryDown(f"address server {endpoint}: {error}") from error

    async def _listed(self, endpoint: Server) -> tuple[Server, ...]:
        status, body = await self.request("endpoint", endpoint, "/serverlist")
        servers = tuple(parse_server(line.strip()) for line in body.decode().splitlines() if line.strip())
        if status != http.HTTPStatus.OK or not servers:
            raise RegistryDown(f"status {status}, {len(servers)} servers")
        return servers

    async def version(self, server: Server) -> str:
        """The version that a server tells, such as ``2.3.2``; ``""`` when it tells none."""
        for path in _STATE_PATHS:
            try:
                status, body = await self.request("version", server, path)
            except RegistryDown:
                return ""
            if status == http.HTTPStatus.OK and (version := _version_in(body)):
                return version
        return ""


def _version_in(body: bytes) -> str:
    with suppress(msgspec.DecodeError):
        state = msgspec.json.decode(body)
        if isinstance(state, dict):
            inner = state.get("data")
            version = (inner if isinstance(inner, dict) else state).get("version")
            return version if isinstance(version, str) else ""
    return ""


class _Login(msgspec.Struct, frozen=True):
    """What a login answers; ``ttl_s`` is the life of the token."""

    token: str = msgspec.field(name="accessToken")
    ttl_s: float = msgspec.field(name="tokenTtl", default=LIFE_S)


class Account:
    """The one user of all connections: its token, renewed before it ends; nothing to do without a user name."""

    def __init__(self, settings: Settings, web: Web, log: Log, rng: random.Random) -> None:
        self._username = settings.username
        self._password = settings.password
        self._password_file = settings.password_file
        self._reread = settings.reread_password
        self._web = web
        self._log = log
        self._token = ""
        self._issued_at = 0.0
        self._life_s = 0.0
        self._refusal = ""
        self._again_at = 0.0
        self._backoff = Backoff(1.0, 60.0, rng)
        self._turn = asyncio.Lock()

    def __repr__(self) -> str:
        state = self._refusal or ("logged in" if self._token else "not logged in")
        return f"<Account {self._username or 'none'}: {state}>"

    @property
    def wait_s(self) -> float:
        """How long until a refused password is tried again; 0 when nothing was refused."""
        return max(0.0, self._again_at - time.monotonic()) if self._refusal else 0.0

    def set_password(self, password: str) -> None:
        """A new password: the next call may try it at once."""
        self._password = password
        self._refusal = ""
        self._backoff.reset()

    async def token(self) -> str:
        """The token to send, ``""`` without a user. RegistryRefused or RegistryDown when there is none to be had."""
        if not self._username or self._age_s() < self._life_s * _RENEW_AT:
            return self._token
        try:
            return await self._renew(self._token)
        except RegistryError:
            if self._age_s() < self._life_s:
                return self._token
            raise

    async def replace(self, rejected: str) -> str:
        """A server rejected this token: a new one. ``""`` when the token is so new that another would not help."""
        if not self._username or (rejected == self._token and self._age_s() < _RENEW_AGAIN_S):
            return ""
        return await self._renew(rejected)

    def _age_s(self) -> float:
        return time.monotonic() - self._issued_at if self._token else float("inf")

    async def _renew(self, old: str) -> str:
        async with self._turn:
            if self._token != old:
                return self._token
            if self.wait_s > 0:
                raise RegistryRefused(self._refusal)
            try:
                await self._login()
            except RegistryRefused:
                if not self._read_password_again():
                    raise
                await self._login()
            return self._token

    def _read_password_again(self) -> bool:
        try:
            password = self._reread() if self._reread else self._password
        except (ConfigError, OSError, ValueError) as error:
            self._log.warning("registry.password_unreadable", error=str(error))
            return False
        changed = password != self._password
        if changed:
            self.set_password(password)
        return changed

    async def _login(self) -> None:
        failure: RegistryDown | None = None
        if self._password_file and not self._password:
            raise RegistryRefused(f"the password file {self._password_file} cannot be read or is empty")
        await self._web.refresh()
        for server in self._web.servers:
            try:
                return self._accept(await self._ask(server))
            except RegistryDown as error:
                failure = error
        raise RegistryDown(f"login: {failure}") from failure

    async def _ask(self, server: Server) -> _Login:
        """The login at one server, by the first path that it knows."""
        form = {"username": self._username, "password": self._password}
        for path in _LOGIN_PATHS:
            status, body = await self._web.request("login", server, path, form)
            if status == http.HTTPStatus.OK:
                try:
                    return msgspec.json.decode(body, type=_Login, strict=False)
                except msgspec.DecodeError as error:
                    raise RegistryDown(f"{server} answers a login with something else") from error
            if status in (401, 403) or (status == 500 and b"not found" in body):
                raise self._refused(server)
            if status not in (404, 405, 410, 501):
                break
        fault = RegistryElsewhere if status == http.HTTPStatus.NOT_FOUND else RegistryDown
        raise fault(f"{server} answers a login with status {status}")

    def _accept(self, login: _Login) -> None:
        self._token = login.token
        self._life_s = login.ttl_s if login.ttl_s > 0 else LIFE_S  # some servers say 0 for a life of any length
        self._issued_at = time.monotonic()
        self._refusal = ""
        self._backoff.reset()

    def _refused(self, server: Server) -> RegistryRefused:
        wait_s = self._backoff.next_s()
        self._again_at = time.monotonic() + wait_s
        self._refusal = f"{server} refuses the user {self._username!r} or its password"
        self._log.warning("registry.refused", server=str(server), username=self._username, again_in_s=round(wait_s, 1))
        return RegistryRefused(self._refusal)
