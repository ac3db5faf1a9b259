"""A host of its own for clients: network and mount namespace, port 53, /etc/resolv.conf, a bridge, an upstream, an ear.

    with ClientHost(directory, services=…) as host:
        host.look_up(GLIBC, "host", "orders.nacos")  # what the client was told
        host.heard()  # what went over the wire meanwhile

Nothing is written under /etc: files are bound over it in the mount namespace. Needs root.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

import dns.exception
import dns.message

from fakes.running import Bridge

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

TESTS = Path(__file__).parents[1]
SOURCES = TESTS / "real" / "clients"
RESOLV_CONF = "nameserver 127.0.0.1\n"
UPSTREAM = "127.0.0.2:5353"
FILES = {"resolv.conf": RESOLV_CONF, "nsswitch.conf": "hosts: files dns\n", "hosts": "127.0.0.1 localhost\n"}
ENTER = """
set -e
ip link set lo up
ip link add eth0 type veth peer name other
ip link set eth0 up; ip link set other up
ip addr add 10.0.0.100/24 dev eth0
ip route add default via 10.0.0.254
ip -6 addr add 2001:db8::100/64 dev eth0 nodad 2>/dev/null && ip -6 route add default via 2001:db8::fe || true
mount --make-rprivate /
for file in resolv.conf nsswitch.conf hosts; do mount --bind "$1/$file" "/etc/$file"; done
echo ready
exec sleep infinity
"""
ANSWERER = f"""
import threading
from fakes.upstream import StubUpstream
with StubUpstream(*"{UPSTREAM}".split(":")[:1], {UPSTREAM.partition(":")[2]}) as stub:
    stub.answer("www.example.com", "A", "198.51.100.7", "198.51.100.8")
    stub.answer("www.example.com", "AAAA", "2001:db8:7::7")
    stub.mute_names.add("mute.example.com")
    print("ready", flush=True)
    threading.Event().wait()
"""
EAR = """
import socket, sys
ear = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
ear.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
ear.bind(("lo", 0))
socket.send_fds(socket.socket(fileno=int(sys.argv[1])), [b"x"], [ear.fileno()])
"""


class Client(NamedTuple):
    """A program that looks up names. ``tools``: what building and running it needs; ``command``: how it is started."""

    name: str
    tools: tuple[str, ...]
    build: tuple[str, ...]
    command: tuple[str, ...]

    def missing(self) -> list[str]:
        """The tools that this machine lacks."""
        return [tool for tool in self.tools if not _is_there(tool)]


GLIBC = Client("glibc", ("gcc",), ("gcc", "-O1", "-o", "{out}", "{in}/lookup.c", "-lresolv"), ("{out}",))
MUSL = Client("musl", ("musl-gcc",), ("musl-gcc", "-static", "-O1", "-o", "{out}", "{in}/lookup.c"), ("{out}",))
GO = Client("go", ("go",), ("go", "build", "-o", "{out}", "{in}/lookup.go"), ("{out}",))
JAVA = Client(
    "java", ("java", "javac"), ("javac", "-d", "{out}", "{in}/Lookup.java"), ("java", "-cp", "{out}", "Lookup")
)
NODE = Client("node", ("node",), (), ("node", "{in}/lookup.js"))
PYTHON = Client("python", (), (), (sys.executable, "{in}/lookup.py"))
ALL = (GLIBC, MUSL, GO, JAVA, NODE, PYTHON)


def table(name: str, addresses: Iterable[str], first_port: int = 8001, *, step: int = 1) -> str:
    """A static service; the ports of its instances rise by ``step``."""
    instances = ", ".join(f'{{ ip = "{ip}", port = {first_port + at * step} }}' for at, ip in enumerate(addresses))
    return f'[[static]]\nname = "{name}"\ninstances = [{instances}]\n'


def _is_there(tool: str) -> bool:
    return any(os.access(f"{place}/{tool}", os.X_OK) for place in os.get_exec_path())


class Found(NamedTuple):
    """What a client was told by one look-up."""

    got: tuple[str, ...]
    error: str = ""


class Heard(NamedTuple):
    """One DNS message on the wire, as far as clients and bridge exchanged it."""

    is_reply: bool
    transport: str
    port: int  # the client's
    size: int
    message: dns.message.Message

    @property
    def question(self) -> str:
        """Type and name."""
        [question] = self.message.question
        return f"{question.rdtype.name} {question.name.to_text(omit_final_dot=True)}"

    @property
    def answer(self) -> tuple[str, ...]:
        """The records' data in the order of the packet."""
        return tuple(rdata.to_text() for rrset in self.message.answer for rdata in rrset)


class Ear:
    """Reads what goes over the loopback of a namespace. The kernel keeps it until it is read: nothing needs to run."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._streams: dict[tuple[int, int], bytearray] = {}
        sock.setblocking(False)

    def heard(self) -> list[Heard]:
        """The messages from and to port 53 since the last call, without those of the bridge's own health check."""
        out: list[Heard] = []
        while True:
            try:
                packet, (_, _, kind, *_) = self._sock.recvfrom(65536)
            except BlockingIOError:
                return [one for one in out if "canary" not in one.question]
            if kind != socket.PACKET_OUTGOING and packet[0] >> 4 == 4:  # loopback shows each packet twice
                out += self._parse(packet)

    def close(self) -> None:
        self._sock.close()

    def _parse(self, packet: bytes) -> list[Heard]:
        protocol, segment = packet[9], packet[(packet[0] & 15) * 4 :]
        source, target = (int.from_bytes(segment[at : at + 2], "big") for at in (0, 2))
        if 53 not in {source, target} or protocol not in {socket.IPPROTO_UDP, socket.IPPROTO_TCP}:
            return []
        if protocol == socket.IPPROTO_UDP:
            return [_message("udp", source, target, segment[8:])]
        if segment[13] & 2:  # SYN
            self._streams[source, target] = bytearray()
        stream = self._streams.setdefault((source, target), bytearray())
        stream += segment[(segment[12] >> 4) * 4 :]
        out = []
        while len(stream) >= 2 and len(stream) >= 2 + int.from_bytes(stream[:2], "big"):
            size = int.from_bytes(stream[:2], "big")
            out.append(_message("tcp", source, target, bytes(stream[2 : 2 + size])))
            del stream[: 2 + size]
        return out


def _message(transport: str, source: int, target: int, data: bytes) -> Heard:
    try:
        message = dns.message.from_wire(data, one_rr_per_rrset=True)
    except dns.message.Truncated as error:
        message = error.message()
    return Heard(source == 53, transport, target if source == 53 else source, len(data), message)


class ClientHost:
    """See the module. ``services`` are [[static]] tables, ``text`` more of the configuration."""

    def __init__(self, directory: Path, *, services: str, text: str = "", go_cache: Path | None = None) -> None:
        self.directory = directory
        self._etc = directory / "etc"
        self._services = directory / "services.toml"
        self._text = text
        self._go_cache = go_cache or directory / "go-cache"
        self._built: set[str] = set()
        self._processes: list[subprocess.Popen[str]] = []
        self.bridge: Bridge | None = None
        self._etc.mkdir()
        for name, content in FILES.items():
            (self._etc / name).write_text(content, encoding="utf-8")
        self.serve(services)

    def __enter__(self) -> Self:
        self._holder = self._start("unshare", "-n", "-m", "sh", "-c", ENTER, "sh", str(self._etc))
        try:
            self._start(*self.inside, sys.executable, "-c", ANSWERER)
            self.ear = self._listen()
            text = f'[nacos]\nservers = []\n[forward]\nupstreams = ["{UPSTREAM}"]\n{self._text}'
            self.bridge = Bridge(
                self.directory,
                text=text,
                top=f'static_file = "{self._services}"\n',
                modules={},
                listen='"127.0.0.1:53"',
                before=self.inside,
            )
            self.bridge.up()
            self.look_up(PYTHON, "inet", "localhost")  # the namespace works
        except BaseException as error:
            self.__exit__()
            if self.bridge is not None:
                error.add_note("\n".join(self.bridge.lines[-20:]))
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self.bridge is not None:
            self.bridge.close()
        if hasattr(self, "ear"):
            self.ear.close()
        for process in reversed(self._processes):
            process.kill()
            process.communicate()

    @property
    def inside(self) -> tuple[str, ...]:
        """What stands before a command that runs on this host."""
        return ("nsenter", "-t", str(self._holder.pid), "-n", "-m")

    def serve(self, services: str) -> None:
        """These static services from now on; the bridge follows the file."""
        draft = self._services.with_suffix(".new")
        draft.write_text(services, encoding="utf-8")
        draft.replace(self._services)

    def resolv_conf(self, text: str = RESOLV_CONF) -> None:
        """Another /etc/resolv.conf for the clients that start from now on."""
        (self._etc / "resolv.conf").write_text(text, encoding="utf-8")  # in place: the file is bound

    def start(self, *command: str) -> subprocess.Popen[str]:
        """A process on this host that says ``ready`` first; ended with the host."""
        return self._start(*self.inside, *command)

    def run(self, *command: str, seconds: float = 60.0, **environment: str) -> str:
        """What a program says that runs on this host."""
        done = subprocess.run(
            [*self.inside, *command],
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
            env=self._environment() | environment,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def look_up(
        self, client: Client, kind: str, name: str, *, times: int = 1, pause_ms: int = 0, options: Sequence[str] = ()
    ) -> list[Found]:
        """So many look-ups by one process of this client; ``options`` follow its first word."""
        first, *rest = self._command(client)
        said = self.run(first, *options, *rest, f"{kind},{name},{times},{pause_ms}")
        return [Found(tuple(line["got"]), line["error"]) for line in map(json.loads, said.splitlines())]

    def heard(self) -> list[Heard]:
        """What clients and bridge said to each other since the last call."""
        return self.ear.heard()

    def asked(self) -> list[str]:
        """The questions since the last call: ``udp A orders.nacos``."""
        return [f"{one.transport} {one.question}" for one in self.heard() if not one.is_reply]

    def _command(self, client: Client) -> list[str]:
        places = {"{out}": str(self.directory / f"{client.name}.out"), "{in}": str(SOURCES)}

        def placed(words: tuple[str, ...]) -> list[str]:
            return [_replaced(word, places) for word in words]

        if client.build and client.name not in self._built:
            go = {"CGO_ENABLED": "0", "GOCACHE": str(self._go_cache), "GOPATH": str(self._go_cache / "path")}
            environment = os.environ | go
            subprocess.run(placed(client.build), check=True, timeout=100, env=environment)
            self._built.add(client.name)
        return placed(client.command)

    def _start(self, *command: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=self._environment())
        self._processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", command
        return process

    def _listen(self) -> Ear:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            number = str(theirs.fileno())
            subprocess.run([*self.inside, sys.executable, "-c", EAR, number], check=True, pass_fds=[theirs.fileno()])
            _, [descriptor], _, _ = socket.recv_fds(ours, 1, 1)
        return Ear(socket.socket(fileno=descriptor))

    @staticmethod
    def _environment() -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
        return kept | {"PYTHONPATH": str(TESTS)}


def _replaced(word: str, places: dict[str, str]) -> str:
    for name, place in places.items():
        word = word.replace(name, place)
    return word
