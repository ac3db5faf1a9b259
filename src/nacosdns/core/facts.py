"""What `nacosdns doctor` learns of a host, as values, and what of the configuration it is judged by.

Must not know: where a fact comes from, what follows from it (core/doctor.py). Rule: what could not be learned is None,
and ``Facts.unknown`` says why.
"""

from __future__ import annotations

import msgspec


class _Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all facts."""


class Setting(_Facts, frozen=True):
    """``own`` is our address on port 53 as this host reaches it ("" for none); ``agent`` whether its programs should ask us."""

    own: str = "127.0.0.1"
    agent: bool = True
    listen: tuple[str, ...] = ("127.0.0.1:53",)
    allow: tuple[str, ...] = ("loopback",)
    zones: tuple[str, ...] = ("nacos.",)
    bare_names: bool = False
    nacos: bool = True
    upstreams: tuple[str, ...] = ("resolv.conf",)
    guard: bool = False
    fronts: int = 1
    tcp_connections: int = 500
    endpoint: str = ""
    config_path: str = ""

    @property
    def option(self) -> str:
        """How a command names this configuration."""
        return f" -c {self.config_path}" if self.config_path else ""


class ResolvFile(_Facts, frozen=True):
    """resolv.conf. ``kind``: file, link, missing or unreadable; ``maker``: who says in a comment that it wrote it."""

    path: str = "/etc/resolv.conf"
    kind: str = "file"
    target: str = ""
    servers: tuple[str, ...] = ()
    search: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    maker: str = ""
    immutable: bool = False
    ours: bool = False


class Guard(_Facts, frozen=True):
    """The guard of resolv.conf: whether one runs, whether it has a copy, how long ago it gave up for a while."""

    runs: bool = False
    has_copy: bool = False
    fought_s: float | None = None


class Upstreams(_Facts, frozen=True):
    """The file that "resolv.conf" means as an upstream, and its servers that are not ourselves.

    ``named`` are the entries of forward.upstreams itself, ``looping`` those of them that are ourselves. ``asked``: what each
    server did when it was asked for the servers of the root: the name of an rcode, or why there was no reply.
    """

    path: str = ""
    servers: tuple[str, ...] = ()
    ourselves: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    looping: tuple[str, ...] = ()
    asked: dict[str, str] = {}


class Nss(_Facts, frozen=True):
    """The words of the ``hosts`` line of nsswitch.conf, actions among them; none without a file or line."""

    hosts: tuple[str, ...] = ()


class Holder(_Facts, frozen=True):
    """A process with a socket on a port; ``pid`` 0 when it cannot be seen. ``parent`` is its parent's pid."""

    kind: str
    address: str
    port: int = 53
    pid: int = 0
    name: str = ""
    parent: int = 0


class Nscd(_Facts, frozen=True):
    """A running name service cache; ``caches_hosts`` by its configuration."""

    pid: int
    caches_hosts: bool = True
    ttl_s: int = 3600


class Jvm(_Facts, frozen=True):
    """A running Java. ``ttl_s`` None: the JVM's default; -1 for ever. ``mistaken``: set as -D, where Java does not look."""

    pid: int
    ttl_s: int | None = None
    source: str = ""
    security_manager: bool = False
    mistaken: bool = False


class System(_Facts, frozen=True):
    """``container``: docker, podman, kubernetes, container or "". ``resolved``: systemd-resolved runs."""

    container: str = ""
    systemd: bool = False
    unit: str = ""
    enabled: bool = False
    resolved: bool = False
    stub_listens: bool = False
    clock_synchronised: bool | None = None
    public_addresses: tuple[str, ...] = ()
    leftovers: tuple[str, ...] = ()


class Disk(_Facts, frozen=True):
    """cache.dir and its file system; ``damaged`` are the databases that were set aside there.

    ``write_error``: why no file could be written there, as ``user`` ("" for ourselves), if that was ``tried``.
    """

    path: str
    exists: bool = True
    tried: bool = True
    write_error: str = ""
    user: str = ""
    kind: str = ""
    free_bytes: int = 1 << 40
    free_part: float = 1.0
    inodes_part: float = 1.0
    damaged: tuple[str, ...] = ()


class Secret(_Facts, frozen=True):
    """The password file and its mode."""

    path: str
    mode: int = 0o600
    error: str = ""


class StaticFile(_Facts, frozen=True):
    """static_file; ``error`` says why it is refused ("" when it is good)."""

    path: str
    error: str = ""


class NacosServer(_Facts, frozen=True):
    """One server, asked by us: its version, and why HTTP or gRPC did not answer ("" when they did).

    ``http_port`` is not 0 when the port that is named speaks gRPC: the one that should have been named. ``took_s``: how long
    the answer took that came, that of gRPC if there are two; ``late``: the other one only did not come in time.
    """

    name: str
    version: str = ""
    http_error: str = ""
    grpc_error: str = ""
    http_port: int = 0
    took_s: float = 0.0
    late: bool = False


class Nacos(_Facts, frozen=True):
    """All servers, and why a login failed; ``login_error`` is None when there is no user.

    ``login_fault``: ``refused`` by its word, ``path`` when no login is found below nacos.context_path, ``down`` when none
    could be tried, ``password`` when there is no password to try.
    """

    servers: tuple[NacosServer, ...] = ()
    login_error: str | None = None
    login_fault: str = ""


class Namespace(_Facts, frozen=True):
    """A namespace's connection, as the keeper says; ``since_s`` is how long it has been so.

    ``refused``: what Nacos refuses on a connection that holds. ``took_s``: how long its last answer took.
    """

    name: str
    connected: bool
    server: str = ""
    version: str = ""
    generation: str = ""
    error: str = ""
    refused: str = ""
    since_s: float | None = None
    took_s: float = 0.0


class Listed(_Facts, frozen=True):
    """How many services Nacos lists of a group, and how many we know while it lists none of them."""

    namespace: str
    group: str
    listed: int
    strangers: int = 0


class Brake(_Facts, frozen=True):
    """``services`` of ``known`` lost most of their instances; ``kept`` instances are served all the same."""

    services: int
    known: int
    kept: int


class UpstreamState(_Facts, frozen=True):
    """An upstream, as a front says."""

    address: str
    health: str
    error: str = ""


class OpenFiles(_Facts, frozen=True):
    """How many files a process of ours has open, of how many (0: not known); ``serves``: it takes connections."""

    name: str
    pid: int
    used: int
    limit: int
    serves: bool = True


class Refused(_Facts, frozen=True):
    """How many clients are not in server.allow; the last of them, and how long ago it asked."""

    clients: int
    last: str
    ago_s: float


class Bridge(_Facts, frozen=True):
    """The running bridge; ``error`` says why its control socket did not answer, ``denied`` that it may well run.

    ``ends``: children that failed lately, and why. ``failed`` are parts that do not answer, ``passing`` those of them that are
    being set up or replaced. ``silent``: it runs and does not answer; ``foreign``: it is of another
    release than this command. ``address_space``: how many bytes a process may map, 0 without a limit.
    ``failing``: what each upstream said to all that was asked lately; ``failed_last``: how many names fail while others do
    not, and the newest; ``hindered``: what this host does not let a part do.
    ``stopped``: children that a signal stopped, with their pids; ``flaps``: upstreams that come and go, in words.
    ``reload_s``: how long ago a configuration was refused. ``web_phase`` is how far the web part is, "" without one;
    ``web_fault`` why it is not even started.
    """

    error: str = ""
    denied: bool = False
    silent: bool = False
    foreign: bool = False
    pid: int = 0
    children: tuple[int, ...] = ()
    canary_age_s: float | None = None
    covered: bool = False
    ends: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    stopped: tuple[tuple[str, int], ...] = ()
    failed: tuple[str, ...] = ()
    passing: tuple[str, ...] = ()
    namespaces: tuple[Namespace, ...] = ()
    upstreams: tuple[UpstreamState, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    failing: dict[str, str] = {}
    failed_last: str = ""
    flaps: tuple[str, ...] = ()
    hindered: tuple[tuple[str, str], ...] = ()
    refused: Refused | None = None
    files: tuple[OpenFiles, ...] = ()
    catalogues: tuple[Listed, ...] = ()
    brake_s: float | None = None
    brake: Brake | None = None
    protected: int = 0
    unhealthy: int = 0
    unhealthy_named: tuple[tuple[str, str], ...] = ()
    store_error: str = ""
    store_failing: str = ""
    buffer_bytes: int = 0
    address_space: int = 0
    reload_refused: str = ""
    reload_s: float | None = None
    upgrade_failed: str = ""
    web_phase: str = ""
    web_fault: str = ""


class Services(_Facts, frozen=True):
    """What the bridge says of its services and of those that Nacos lists.

    Those that no name leads to, with the reason; those that are protected; spellings that share a name. ``seen`` of
    ``total`` were looked at. ``future``: how many were confirmed in the future, up to ``future_s`` from now.
    """

    unnameable: tuple[tuple[str, str], ...] = ()
    protected: tuple[str, ...] = ()
    clashing: tuple[str, ...] = ()
    seen: int = 0
    total: int = 0
    future: int = 0
    future_s: float = 0.0


class Facts(_Facts, frozen=True):
    """Everything. ``answers``: what each server of resolv.conf said when asked for our zone: zone, silent or an rcode.

    ``config_error``: why the configuration file is refused, when the running bridge told the one it has instead.
    ``web_holders`` have the port of web.listen; ``writers`` are running programs known to write resolv.conf, with a pid.
    """

    resolv: ResolvFile | None = None
    guard: Guard | None = None
    upstreams: Upstreams | None = None
    answers: dict[str, str] = {}
    nss: Nss | None = None
    holders: tuple[Holder, ...] | None = None
    nscd: tuple[Nscd, ...] | None = None
    jvms: tuple[Jvm, ...] | None = None
    system: System | None = None
    disk: Disk | None = None
    secret: Secret | None = None
    nacos: Nacos | None = None
    bridge: Bridge | None = None
    services: Services | None = None
    static_file: StaticFile | None = None
    web_holders: tuple[Holder, ...] = ()
    writers: tuple[tuple[str, int], ...] = ()
    config_error: str = ""
    unknown: dict[str, str] = {}
