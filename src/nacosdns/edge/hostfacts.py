"""What the files of a host say of it: configuration below /etc, what runs below /proc.

Must not know: what is right or wrong (core/doctor.py). Rules: everything is below one root, so that a directory tree can
stand for a host; links are followed below that root too; a file that is not there is an answer, one that may not be read
is an empty one.
"""

from __future__ import annotations

import ctypes
import os
import re
import stat
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from nacosdns.core.facts import Disk, Holder, Jvm, Nscd, Nss, Secret, System
from nacosdns.core.resolvtext import MARK
from nacosdns.edge.holders import bound, owners, processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

UNIT = "nacosdns.service"
SOCKET_UNIT = "nacosdns.socket"
DAMAGED = "cache.db.damaged-*[0-9]"  # without those of SQLite beside it, -wal and -shm
GUARD_LEFTOVER = ".resolv.conf.nacosdns"
_BYTES_MAX = 1 << 20
_BLOCK_BYTES = 4096
_LINKS_MAX = 16
_UNIT_FOLDERS = (
    "etc/systemd/system",
    "run/systemd/system",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
)
_SECURITY_FILES = ("conf/security/java.security", "lib/security/java.security", "jre/lib/security/java.security")
_MAKERS = (
    ("systemd-resolved", "systemd-resolved"),
    ("networkmanager", "NetworkManager"),
    ("docker engine", "Docker"),
    ("resolvconf", "resolvconf"),
    ("dhclient", "dhclient"),
    ("dhcpcd", "dhcpcd"),
    ("cloud-init", "cloud-init"),
    ("netconfig", "netconfig"),
    ("wsl", "WSL"),
)
_WRITERS = {
    *("NetworkManager", "systemd-network", "systemd-resolve", "connmand", "wickedd", "netconfig", "resolvconf"),
    *("dhclient", "dhcpcd", "udhcpc", "cloud-init", "rdnssd", "pppd"),
    *("openvpn", "openconnect", "vpnc", "tailscaled", "warp-svc", "charon"),
}
"""Programs that write resolv.conf, by the 15 bytes that the kernel keeps of a name."""
_TTL = "networkaddress.cache.ttl"
_TTL_OPTION = "-Dsun.net.inetaddr.ttl="
_CAP_NET_ADMIN = 12  # linux/capability.h


class User(NamedTuple):
    """Whom the bridge is on the disk."""

    name: str
    uid: int
    gid: int


class Tree:
    """A host's files below ``root``."""

    def __init__(self, root: str = "/") -> None:
        self.root = Path(root)

    def __repr__(self) -> str:
        return f"<Tree {self.root}>"

    def path(self, name: str) -> Path:
        """Where a file of the host really is: every link on the way is followed below the root, never out of it."""
        reached: list[str] = []
        todo = list(reversed(Path(name).parts))
        links = 0
        while todo:
            part = todo.pop()
            if part == "/":
                reached.clear()
            elif part == "..":
                del reached[-1:]
            else:
                target = _link(self.root.joinpath(*reached, part)) if links < _LINKS_MAX else ""
                links += bool(target)
                todo += reversed(Path(target).parts) if target else ()
                reached += [] if target else [part]
        return self.root.joinpath(*reached)

    def link(self, name: str) -> str:
        """What the link says; "" for no link."""
        path = Path(name)
        return _link(self.path(str(path.parent)) / path.name)

    def text(self, name: str) -> str:
        """The text of a file; "" when there is none, or none that we may read."""
        return _text(self.path(name))

    def exists(self, name: str) -> bool:
        """Whether a file or folder is there, links followed."""
        return self.path(name).exists()

    def processes(self) -> Iterator[Path]:
        """The folders of all processes."""
        return processes(self.path("proc"))


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def _text(path: Path) -> str:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return ""
        with path.open("rb") as file:
            return file.read(_BYTES_MAX).decode("utf-8", "replace")
    except OSError:
        return ""


def is_readable(path: Path) -> bool:
    """Whether we may read this file."""
    try:
        with path.open("rb"):
            return True
    except OSError:
        return False


def maker(tree: Tree, path: str) -> str:
    """Who says that it wrote a resolv.conf, by its comments or by where its link leads; "" for nobody."""
    leads = tree.link(path)
    if "systemd/resolve" in leads:
        return "systemd-resolved"
    said = leads + " ".join(line for line in tree.text(path).splitlines() if line.startswith(("#", ";")))
    return next((name for word, name in _MAKERS if word in said.lower()), "")


def is_ours(tree: Tree, path: str) -> bool:
    """Whether the guard wrote it."""
    return tree.text(path).startswith(MARK.decode())


def nss(tree: Tree) -> Nss:
    """The hosts line of nsswitch.conf."""
    lines = (line.partition("#")[0].split() for line in tree.text("etc/nsswitch.conf").splitlines())
    found = next((words[1:] for words in lines if words[:1] == ["hosts:"]), ())
    return Nss(hosts=tuple(_joined(found)))


def _joined(words: list[str] | tuple[()]) -> Iterator[str]:
    """Actions may hold spaces: ``[NOTFOUND=return SUCCESS=continue]`` is one word."""
    action = ""
    for word in words:
        action = f"{action} {word}".strip() if action or word.startswith("[") else ""
        if not action:
            yield word
        elif word.endswith("]"):
            yield action
            action = ""


def holders(tree: Tree, port: int = 53) -> tuple[Holder, ...]:
    """Who has a UDP or a listening TCP socket on this port."""
    found = {
        socket: (kind, address)
        for kind in ("udp", "tcp")
        for table in (kind, f"{kind}6")
        for address, socket in bound(tree.text(f"proc/net/{table}"), port, kind)
    }
    oldest: dict[str, Path] = {}
    for socket, process in owners(tree.path("proc"), set(found)) if found else ():
        oldest.setdefault(socket, process)
    holders = (_holder(kind, address, oldest.get(socket)) for socket, (kind, address) in found.items())
    return tuple(sorted(set(holders), key=lambda holder: (holder.kind, holder.address, holder.pid)))


def _holder(kind: str, address: str, owner: Path | None) -> Holder:
    if owner is None:
        return Holder(kind=kind, address=address)
    name = _text(owner / "comm").strip()
    return Holder(kind=kind, address=address, pid=int(owner.name), name=name, parent=_parent(owner))


def _parent(process: Path) -> int:
    found = re.search(r"^PPid:\s*(\d+)", _text(process / "status"), re.MULTILINE)
    return int(found.group(1)) if found else 0


def named(tree: Tree, wanted: Callable[[str], bool]) -> Iterator[Path]:
    """The processes whose name is wanted."""
    return (process for process in tree.processes() if wanted(_text(process / "comm").strip()))


def writers(tree: Tree) -> tuple[tuple[str, int], ...]:
    """Running programs that are known to write resolv.conf, with their pids."""
    found = named(tree, lambda name: name in _WRITERS)
    return tuple(sorted((_text(process / "comm").strip(), int(process.name)) for process in found))


def nscds(tree: Tree) -> tuple[Nscd, ...]:
    """Running name service caches that libc asks."""
    caches, ttl_s = True, 3600
    for line in tree.text("etc/nscd.conf").splitlines():
        match line.partition("#")[0].split():
            case ["enable-cache", "hosts", word]:
                caches = word == "yes"
            case ["positive-time-to-live", "hosts", number] if number.isdigit():
                ttl_s = int(number)
            case _:
                pass
    running = named(tree, lambda name: name in {"nscd", "unscd"})
    return tuple(Nscd(pid=int(process.name), caches_hosts=caches, ttl_s=ttl_s) for process in running)


def jvms(tree: Tree) -> tuple[Jvm, ...]:
    """Running Javas and how long they keep addresses."""
    return tuple(_jvm(tree, process) for process in named(tree, lambda name: name in {"java", "jsvc"}))


def _jvm(tree: Tree, process: Path) -> Jvm:
    words = _text(process / "cmdline").split("\0")
    said = next((word for word in words if word.startswith(_TTL_OPTION)), "")
    managed = any(word == "-Djava.security.manager" or word.startswith("-Djava.security.manager=") for word in words)
    mistaken = any(word.startswith(f"-D{_TTL}=") for word in words)
    source, ttl = ("-D" + said.removeprefix("-D").partition("=")[0], said.partition("=")[2]) if said else ("", "")
    secured, file = _security_ttl(tree, process, words)
    if secured:  # the security property wins over the system property (java.net.InetAddress)
        source, ttl = file, secured
    known = int(ttl) if re.fullmatch(r"-?\d{1,9}", ttl) else None
    return Jvm(pid=int(process.name), ttl_s=known, source=source, security_manager=managed, mistaken=mistaken)


def _security_ttl(tree: Tree, process: Path, words: list[str]) -> tuple[str, str]:
    """networkaddress.cache.ttl of the java.security that this process reads, and that file."""
    own = [word.partition("=")[2].lstrip("=") for word in words if word.startswith("-Djava.security.properties=")]
    try:
        home = Path(os.path.normpath(str((process / "exe").readlink()))).parent.parent
    except OSError:
        home = Path("/nowhere")
    for file in [*own, *(str(home / name) for name in _SECURITY_FILES)]:
        found = re.search(rf"^\s*{re.escape(_TTL)}\s*[=:]\s*(-?\d+)", tree.text(file), re.MULTILINE)
        if found:
            return found.group(1), file
    return "", ""


def system(tree: Tree) -> System:
    """What kind of host this is, and what runs on it beside us. Clock and addresses come from the kernel."""
    resolved = any(True for _ in named(tree, lambda name: name.startswith("systemd-resolve")))
    unit, enabled = _unit(tree)
    leftovers = [f"/etc/{GUARD_LEFTOVER}"] if tree.exists(f"etc/{GUARD_LEFTOVER}") else []
    return System(
        container=_container(tree),
        systemd=tree.exists("run/systemd/system"),
        unit=unit,
        enabled=enabled,
        resolved=resolved,
        leftovers=tuple(leftovers),
    )


def _container(tree: Tree) -> str:
    if tree.exists("var/run/secrets/kubernetes.io") or tree.exists("run/secrets/kubernetes.io"):
        return "kubernetes"
    if tree.exists(".dockerenv"):
        return "docker"
    if tree.exists("run/.containerenv"):
        return "podman"
    said = re.search(r"(?:^|\0)container=([^\0]*)", tree.text("proc/1/environ"))
    return "container" if said and said.group(1) else ""


def _unit(tree: Tree) -> tuple[str, bool]:
    """Our unit, and whether something starts it: a link in a folder of wants, or a socket that is wanted."""
    there = [name for name in (UNIT, SOCKET_UNIT) if any(tree.exists(f"{folder}/{name}") for folder in _UNIT_FOLDERS)]
    wants = tree.path("etc/systemd/system")
    enabled = any((folder / name).is_symlink() for name in there for folder in wants.glob("*.*"))
    return (there[0] if there else "", enabled)


def disk(tree: Tree, directory: str, user: User | None = None) -> Disk:
    """The state directory and the file system that it is on, or would be on. ``user``: whom to be when it is tried."""
    path = tree.path(directory)
    exists = path.is_dir()
    there = next((folder for folder in (path, *path.parents) if folder.exists()), tree.root)
    facts = os.statvfs(there)
    return Disk(
        path=directory,
        exists=exists,
        damaged=tuple(f"{directory}/{file.name}" for file in sorted(path.glob(DAMAGED))),
        tried=not exists or _is_ours_to_try(path),
        write_error=_write_error(path, user) if exists else "",
        user=user.name if user else "",
        kind=_file_system(tree, there),
        free_bytes=facts.f_bavail * facts.f_frsize,
        free_part=facts.f_bavail / facts.f_blocks if facts.f_blocks else 1.0,
        inodes_part=facts.f_favail / facts.f_files if facts.f_files else 1.0,
    )


def _is_ours_to_try(path: Path) -> bool:
    """Whether what we may do there says anything: root can be anybody; somebody else only who the files are of."""
    try:
        return os.geteuid() in {0, path.stat().st_uid} or os.access(path, os.W_OK | os.X_OK)
    except OSError:
        return False


def _write_error(path: Path, user: User | None) -> str:
    """Why a file cannot be written there; nothing of it stays. Flags of a mount do not tell all: ext4 may shut it by itself."""
    try:
        with _files_as(user), tempfile.TemporaryFile(dir=path, buffering=0) as file:
            file.write(bytes(_BLOCK_BYTES))
    except OSError as error:
        return error.strerror or str(error)
    return ""


@contextmanager
def _files_as(user: User | None) -> Iterator[None]:
    """Files are asked for as this user, by this thread only (setfsuid(2)), as far as the system can do that."""
    libc = ctypes.CDLL(None)
    if user is None or not hasattr(libc, "setfsuid"):
        yield
        return
    before = libc.setfsgid(user.gid), libc.setfsuid(user.uid)
    try:
        yield
    finally:
        libc.setfsuid(before[1])
        libc.setfsgid(before[0])


def _file_system(tree: Tree, path: Path) -> str:
    """The type of the file system by /proc/self/mountinfo (proc(5)): the longest mount point, of equal ones the last."""
    real = str(path.resolve())
    best, kind = -1, ""
    for line in tree.text("proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < 5 or not right:
            continue
        point = fields[4].replace("\\040", " ")
        if len(point) >= best and (real == point or real.startswith(point.rstrip("/") + "/")):
            best, kind = len(point), right.split()[0]
    return kind


def secret(tree: Tree, path: str) -> Secret:
    """The mode of the password file, and whether anything is in it as far as we may read it."""
    file = tree.path(path)
    try:
        facts = file.stat()
    except OSError as error:
        return Secret(path=path, error=f"{path} cannot be read ({error.strerror})")
    is_empty = not facts.st_size or (is_readable(file) and not _text(file).strip("\r\n"))
    return Secret(path=path, mode=stat.S_IMODE(facts.st_mode), error=f"{path} is empty" if is_empty else "")


def files_max(tree: Tree, pid: int) -> int:
    """How many open files a process may have; 0 for unknown or no limit."""
    return _limit(tree, pid, "open files")


def address_space_max(tree: Tree, pid: int) -> int:
    """How many bytes of memory a process may map (ulimit -v); 0 for unknown or no limit."""
    return _limit(tree, pid, "address space")


def _limit(tree: Tree, pid: int, what: str) -> int:
    found = re.search(rf"^Max {what}\s+(\d+)", tree.text(f"proc/{pid}/limits"), re.MULTILINE)
    return int(found.group(1)) if found else 0


def files_used(tree: Tree, pid: int) -> int:
    """How many descriptors a process has open; 0 for unknown."""
    try:
        return sum(1 for _ in tree.path(f"proc/{pid}/fd").iterdir())
    except OSError:
        return 0


def buffer_bytes(tree: Tree, pid: int, wanted: int) -> int:
    """The receive buffer that a process gets when it wants this size: the kernel doubles it (socket(7)); 0 for unknown."""
    rights = re.search(r"^CapEff:\s*([0-9a-f]+)", tree.text(f"proc/{pid}/status"), re.MULTILINE)
    largest = tree.text("proc/sys/net/core/rmem_max").strip()
    if rights is None or not largest.isdigit():
        return 0
    may_force = bool(int(rights.group(1), 16) >> _CAP_NET_ADMIN & 1)
    return 2 * (wanted if may_force else min(wanted, int(largest)))


def stub_listens(found: tuple[Holder, ...]) -> bool:
    """Whether the stub of systemd-resolved is among the holders."""
    return any(holder.address in {"127.0.0.53", "127.0.0.54"} for holder in found)
