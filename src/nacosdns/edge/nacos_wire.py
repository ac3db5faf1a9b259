"""Messages to and from a Nacos server over one gRPC connection; all of nacos-sdk-python that we use is in this file.

Must not know: when to connect, which services are wanted. Of the SDK we take the messages and the stubs. Its life of a
connection is not used: it dies silently, hides error codes, redoes subscriptions in bursts, writes logs and caches.
Rules: no exception of gRPC leaves this file; a token goes into a header only; nothing is written to disk.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
import time
import warnings
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from nacosdns.errors import ConfigError, RegistryDown

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator, Sequence

    from nacosdns.core.model import Instance, ServiceKey
    from nacosdns.edge.nacos_http import Server, Settings

# gRPC reads these when it is first imported: we never fork after that, and it must not write to stderr by itself.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # else every installed package is searched for them


@contextmanager
def _importing_from(name: str) -> Iterator[None]:
    """Modules of a package can be imported inside without running its ``__init__``, and without their deprecations.

    That of v2.nacos imports configuration, KMS and AI: 37 MB and half a second that naming does not need.
    """
    spec = importlib.util.find_spec(name)
    bare = importlib.util.module_from_spec(spec) if spec and name not in sys.modules else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        if bare is not None:
            sys.modules[name] = bare
        yield
    if bare is not None:
        del sys.modules[name]


with _importing_from("v2.nacos"):
    import grpc
    import grpc.aio
    from v2.nacos.common.constants import Constants
    from v2.nacos.common.nacos_exception import INVALID_PARAM, NO_HANDLER, NO_RIGHT, UN_REGISTER
    from v2.nacos.naming.model.instance import Instance as SdkInstance
    from v2.nacos.naming.model.naming_request import (
        NOTIFY_SUBSCRIBER_REQUEST_TYPE,
        BatchInstanceRequest,
        InstanceRequest,
        ServiceListRequest,
        ServiceQueryRequest,
        SubscribeServiceRequest,
    )
    from v2.nacos.naming.util.naming_remote_constants import NamingRemoteConstants
    from v2.nacos.transport.grpcauto.nacos_grpc_service_pb2 import Metadata, Payload
    from v2.nacos.transport.grpcauto.nacos_grpc_service_pb2_grpc import BiRequestStreamStub, RequestStub
    from v2.nacos.transport.model.internal_request import (
        CLIENT_DETECTION_REQUEST_TYPE,
        CONNECTION_RESET_REQUEST_TYPE,
        SETUP_REQUEST_TYPE,
        ConnectionSetupRequest,
        HealthCheckRequest,
        ServerCheckRequest,
    )
    from v2.nacos.transport.model.internal_response import (
        ClientDetectionResponse,
        ConnectResetResponse,
        NotifySubscriberResponse,
    )
    from v2.nacos.transport.model.rpc_request import Request

__all__ = ["INVALID_PARAM", "NO_HANDLER", "NO_RIGHT", "UN_REGISTER", "Request"]

APP = "nacosdns"
PUSH = NOTIFY_SUBSCRIBER_REQUEST_TYPE
RESET = CONNECTION_RESET_REQUEST_TYPE
_SETTLED = SETUP_REQUEST_TYPE
_REPLIES = {
    PUSH: NotifySubscriberResponse,
    RESET: ConnectResetResponse,
    CLIENT_DETECTION_REQUEST_TYPE: ClientDetectionResponse,
}
_CLUES = (
    ("connection refused", "connection refused"),
    ("no route to host", "no route to host"),
    ("network is unreachable", "network is unreachable"),
    ("connection reset", "connection reset by peer"),
    ("connection timed out", "connection timed out"),
    ("socket closed", "the connection was closed"),
)
"""Words in what gRPC says, and what they mean to us."""
_DETAILS_MAX = 200
_UNANSWERED_MAX = 2  # requests in a row without any answer end a connection
_OPTIONS = (
    ("grpc.max_receive_message_length", 100 * 1024 * 1024),
    ("grpc.use_local_subchannel_pool", 1),  # to Nacos a TCP connection is a client: never share one
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.http2.bdp_probe", 0),  # measuring the line costs ten wake-ups a second for ever: a wide window instead
    ("grpc.http2.lookahead_bytes", 4 * 1024 * 1024),
    ("grpc.service_config_disable_resolution", 1),  # no TXT question for each server name
)


class Host(msgspec.Struct, rename="camel", gc=False):
    """An instance as Nacos writes it. Nothing is believed yet, so that one odd field spoils one instance only."""

    ip: object = ""
    port: object = 0
    weight: object = 1.0
    healthy: object = True
    enabled: object = True
    cluster_name: object = ""
    metadata: object = None


class ServiceInfo(msgspec.Struct, rename="camel"):
    """A service as Nacos writes it."""

    name: str = ""
    group_name: str = ""
    hosts: list[Host] | None = None
    reach_protection_threshold: bool = False


class Message(msgspec.Struct, rename="camel"):
    """Any message of a Nacos server, with the fields that we read."""

    result_code: int = 200
    error_code: int = 0
    message: str | None = None
    request_id: str | None = None
    service_info: ServiceInfo | None = None
    service_names: list[str] | None = None
    count: int = 0
    support_ability_negotiation: bool = False
    server_ip: str | None = None
    server_port: str | int | None = None

    @property
    def good(self) -> bool:
        """Whether the server did what was asked."""
        return self.result_code == 200

    @property
    def complaint(self) -> str:
        """Code and words of an answer that is not good."""
        return f"{self.error_code} {self.message or ''}".strip()


_decode = msgspec.json.Decoder(Message).decode


class LostError(Exception):
    """Ends a connection; the text says why."""


# ---- what we ask


def query(key: ServiceKey) -> Request:
    """The list of a service, all its clusters, without a subscription."""
    return ServiceQueryRequest(
        namespace=key.namespace, groupName=key.group, serviceName=key.service, cluster="", healthOnly=False
    )


def subscription(key: ServiceKey, *, subscribe: bool) -> Request:
    """Begins or ends a subscription of all clusters of a service."""
    return SubscribeServiceRequest(
        namespace=key.namespace, groupName=key.group, serviceName=key.service, clusters="", subscribe=subscribe
    )


def catalogue(namespace: str, group: str, size: int) -> Request:
    """The first ``size`` service names of a group."""
    return ServiceListRequest(namespace=namespace, groupName=group, serviceName="", pageNo=1, pageSize=size)


def registration(key: ServiceKey, instance: Instance) -> Request:
    """Makes this the one instance of the service that our connection holds."""
    return InstanceRequest(
        namespace=key.namespace,
        groupName=key.group,
        serviceName=key.service,
        instance=_sdk_instance(instance),
        type=NamingRemoteConstants.REGISTER_INSTANCE,
    )


def batch_registration(key: ServiceKey, instances: Sequence[Instance]) -> Request:
    """Makes these the instances of the service that our connection holds; others of it are removed. Nacos 2.1.1."""
    return BatchInstanceRequest(
        namespace=key.namespace,
        groupName=key.group,
        serviceName=key.service,
        instances=[_sdk_instance(instance) for instance in instances],
        type=NamingRemoteConstants.BATCH_REGISTER_INSTANCE,
    )


def deregistration(key: ServiceKey, instance: Instance) -> Request:
    """Removes everything of the service that our connection holds; the server asks for an instance all the same."""
    return InstanceRequest(
        namespace=key.namespace,
        groupName=key.group,
        serviceName=key.service,
        instance=_sdk_instance(instance),
        type=NamingRemoteConstants.DE_REGISTER_INSTANCE,
    )


def _sdk_instance(instance: Instance) -> SdkInstance:
    return SdkInstance(
        ip=instance.address,
        port=instance.port,
        weight=instance.weight,
        healthy=instance.healthy,
        enabled=instance.enabled,
        ephemeral=True,
        clusterName=instance.cluster,
        metadata=dict(instance.metadata),
    )


# ---- the connection


class Dialer:
    """Makes connections with the certificates of the settings; ConfigError when those cannot be used."""

    def __init__(self, settings: Settings, requests: Counter[str]) -> None:
        self._requests = requests
        self._credentials = _credentials(settings)

    def dial(self, server: Server, addresses: Sequence[str] = ()) -> Connection:
        """A connection that is not set up yet; ``addresses`` where libc is not to find the server."""
        target, options = _target(server, addresses)
        if self._credentials is None:
            channel = grpc.aio.insecure_channel(target, options=options)
        else:
            channel = grpc.aio.secure_channel(target, self._credentials, options=options)
        return Connection(server, channel, self._requests)


def _target(server: Server, addresses: Sequence[str]) -> tuple[str, tuple[tuple[str, str | int], ...]]:
    """What gRPC connects to: of addresses those of one family, under the server's own name."""
    if not addresses or addresses == (server.host,):
        return server.grpc_target, _OPTIONS
    port = server.grpc_port
    four = [f"{address}:{port}" for address in addresses if ":" not in address]
    target = f"ipv4:{','.join(four)}" if four else f"ipv6:{','.join(f'[{address}]:{port}' for address in addresses)}"
    return target, (*_OPTIONS, ("grpc.default_authority", server.grpc_target))


def _credentials(settings: Settings) -> grpc.ChannelCredentials | None:
    if not settings.ca_file:
        return None
    names = (settings.ca_file, settings.key_file, settings.cert_file)
    try:
        return grpc.ssl_channel_credentials(*(Path(name).read_bytes() if name else None for name in names))
    except OSError as error:
        remedy = "check ca_file, cert_file and key_file"
        raise ConfigError(f"certificates cannot be read: {error}", key="nacos.ca_file", remedy=remedy) from error


class Connection:
    """One gRPC channel to a server, and what was heard on it. ``requests`` counts everything sent, by kind."""

    def __init__(self, server: Server, channel: grpc.aio.Channel, requests: Counter[str]) -> None:
        self.server = server
        self.version = ""
        self.negotiates = False
        self.heard_at = time.monotonic()
        self.lost = asyncio.Event()
        self.reason = ""
        self._unanswered = 0
        self._closed = False
        self._requests = requests
        self._client_ip = ""
        self._channel = channel
        self._ask = RequestStub(channel).request
        self._open_stream = BiRequestStreamStub(channel).requestBiStream
        self._stream: grpc.aio.StreamStreamCall | None = None

    def __repr__(self) -> str:
        return f"<Connection to {self.server}: {self.reason or 'open'}>"

    async def set_up(self, namespace: str) -> None:
        """Makes us a client of the server. ConnectionError when it has no gRPC, RegistryDown when it is not ready."""
        self._client_ip = await _local_address(self.server)
        try:
            await self._introduce(namespace)
        except grpc.aio.AioRpcError as error:
            raise ConnectionError(plain(error)) from error

    async def _introduce(self, namespace: str) -> None:
        check = await self._exchange(ServerCheckRequest(), "connect")
        if not check.good:
            raise RegistryDown(f"{self.server} is not ready: {check.complaint}")
        self.negotiates = check.support_ability_negotiation
        self._requests["connect"] += 1
        self._stream = self._open_stream()
        await self._stream.write(self._request_payload(_setup(namespace)))
        wait_s = 0.01  # the server knows us only a moment after the set-up, and does not say when
        while (health := await self._exchange(HealthCheckRequest(), "health")).error_code == UN_REGISTER:
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, 0.5)
        if not health.good:
            raise RegistryDown(f"{self.server} is not ready: {health.complaint}")

    async def ask(self, request: Request, kind: str, *, token: str = "", timeout_s: float) -> Message:
        """One request and its answer, good or not. RegistryDown when none came in time; silence ends the connection."""
        try:
            async with asyncio.timeout(timeout_s):
                message = await self._exchange(request, kind, token)
        except TimeoutError as error:
            self._not_heard()
            raise RegistryDown(f"{self.server} did not answer a {kind} within {timeout_s:g} s") from error
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                self.lose(plain(error))
            raise RegistryDown(f"{self.server}: {plain(error)}") from error
        self._heard()
        return message

    async def check(self, timeout_s: float) -> Message:
        """Asks whether the server still knows us, as ``ask`` does."""
        return await self.ask(HealthCheckRequest(), "health", timeout_s=timeout_s)

    async def receive(self) -> tuple[str, Message]:
        """The next message that the server sends by itself, and its kind. LostError when the stream has ended."""
        try:
            payload = await self._stream.read() if self._stream else grpc.aio.EOF
        except grpc.aio.AioRpcError as error:
            raise LostError(f"the stream broke: {plain(error)}") from error
        if payload is grpc.aio.EOF:
            raise LostError("the server ended the stream")
        self._heard()
        return payload.metadata.type, self._message(payload)

    async def reply(self, kind: str, message: Message, *, timeout_s: float) -> bool:
        """Answers a message of the server; False when this kind is not known. LostError when it takes no answers."""
        if kind == _SETTLED:
            return True
        response = _REPLIES.get(kind)
        if response is None or self._stream is None:
            return False
        body = response(requestId=message.request_id or "")
        try:
            async with asyncio.timeout(timeout_s):
                await self._stream.write(
                    self._payload(body.get_response_type(), body.model_dump_json(exclude_none=True))
                )
        except TimeoutError as error:
            raise LostError("the server does not take our answers") from error
        except grpc.aio.AioRpcError as error:
            raise LostError(f"the stream broke: {plain(error)}") from error
        except asyncio.InvalidStateError as error:
            raise LostError("the stream broke: it has ended") from error
        return True

    def lose(self, reason: str) -> None:
        """Marks the end; whoever owns the connection closes it. The first reason stands."""
        self.reason = self.reason or reason
        self.lost.set()

    async def close(self) -> None:
        """Ends everything under way on it."""
        self._closed = True
        await self._channel.close()

    async def _exchange(self, request: Request, kind: str, token: str = "") -> Message:
        self._requests[kind] += 1
        try:
            payload = await self._ask(self._request_payload(request, token))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._closed and not (task and task.cancelling()):  # gRPC says it so when the channel was closed
                raise RegistryDown(f"{self.server}: {self.reason or 'closed'}") from None
            raise
        return self._message(payload)

    def _message(self, payload: Payload) -> Message:
        try:
            return _decode(payload.body.value)
        except msgspec.MsgspecError as error:
            raise RegistryDown(f"{self.server} sent a {payload.metadata.type} that cannot be read: {error}") from error

    def _request_payload(self, request: Request, token: str = "") -> Payload:
        body = request.model_dump_json(exclude_none=True, exclude={"headers"})
        return self._payload(request.get_request_type(), body, {Constants.ACCESS_TOKEN: token} if token else {})

    def _payload(self, kind: str, body: str, headers: dict[str, str] | None = None) -> Payload:
        headers = {"app": APP, **(headers or {})}
        payload = Payload(metadata=Metadata(type=kind, clientIp=self._client_ip, headers=headers))
        payload.body.value = body.encode()
        return payload

    def _heard(self) -> None:
        self.heard_at = time.monotonic()
        self._unanswered = 0

    def _not_heard(self) -> None:
        self._unanswered += 1
        if self._unanswered >= _UNANSWERED_MAX:
            self.lose("the server does not answer")


def plain(error: grpc.aio.AioRpcError) -> str:
    """Why a call failed, in one plain sentence; what gRPC says of it may be long and have several lines."""
    details = " ".join((error.details() or "").split())
    said = details.lower()
    known = next((words for clue, words in _CLUES if clue in said), "")
    return known or f"{error.code().name}: {details}"[:_DETAILS_MAX]


def _setup(namespace: str) -> Request:
    labels = {
        Constants.LABEL_SOURCE: Constants.LABEL_SOURCE_SDK,
        Constants.LABEL_MODULE: Constants.NAMING_MODULE,
        Constants.APPNAME: APP,
    }
    return ConnectionSetupRequest(
        clientVersion=Constants.CLIENT_VERSION, tenant=namespace, labels=labels, abilityTable={}
    )


async def _local_address(server: Server) -> str:
    """Our address as this server sees it, for its list of subscribers; ``""`` without a way to it. Sends nothing."""
    loop = asyncio.get_running_loop()
    where = (server.host, server.port)
    with suppress(OSError):
        transport, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, remote_addr=where)
        address = str(transport.get_extra_info("sockname")[0])
        transport.close()
        return address
    return ""
