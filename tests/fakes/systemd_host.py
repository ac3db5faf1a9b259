"""A host of its own whose PID 1 is the real systemd of this machine, with its own files, processes, network and journal.

    with SystemdHost(directory) as host:
        host.run("systemctl", "start", "some.service")
        host.show("some.service", "MainPID")

Its root is this machine's, under a layer in memory that takes what is written; so are /opt/source, which
is this repository, and /opt/libraries, what the tests have installed. No unit of this machine starts there but the journal. Limits hold as far as this machine has cgroup controllers, of
version 1 or 2. Nothing is left behind: the end of PID 1 is the end of every process and every mount. Needs root.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from fakes.paced import Paced
from fakes.running import until

if TYPE_CHECKING:
    from collections.abc import Callable

    Result = TypeVar("Result")

ROOT = Path(__file__).parents[2]
SYSTEMD = Path("/usr/lib/systemd/systemd")
TOOLS = ("unshare", "nsenter", "setpriv", "ip", "systemctl", "systemd-sysusers", "dig")
SEARCH = "/opt/python/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SO_RCVBUFFORCE = 33  # Python has no name for it
NAMESPACES = ("-m", "-u", "-i", "-n", "-p", "-C")

# hierarchies WHERE: every cgroup hierarchy of this machine as this process sees it; with version 2 alone, one at WHERE.
HIERARCHIES = """
set -eu
hierarchies() {
  if [ "$(wc -l < /proc/self/cgroup)" = 1 ]; then mount -t cgroup2 cgroup2 "$1"; return; fi
  mount -t tmpfs -o mode=755 cgroup "$1"
  while IFS=: read -r _ names _; do
    case "$names" in
      "") place=unified kind=cgroup2 options=rw ;;
      name=*) place=${names#name=} kind=cgroup options=none,$names ;;
      *) place=$names kind=cgroup options=$names ;;
    esac
    mkdir "$1/$place"
    mount -t "$kind" -o "$options" "$kind" "$1/$place"
  done < /proc/self/cgroup
}
groups_of() { find "$1" -maxdepth 3 -type d -name "$2"; }
"""
# JOIN: a group of our own in each, and this process in it. BOOT: the root, and systemd in this process.
JOIN = """
mount -t tmpfs -o mode=755 scratch "$scratch"
mkdir "$scratch/all"
hierarchies "$scratch/all"
for place in "$scratch/all" "$scratch/all"/*; do
  [ -e "$place/cgroup.procs" ] || continue
  [ "$place" != "$scratch/all" ] || for one in cpu memory pids; do
    echo "+$one" > "$place/cgroup.subtree_control" || echo "no controller $one"
  done
  mkdir "$place/$name"
  for file in cpuset.cpus cpuset.mems; do
    [ ! -e "$place/cpuset.cpu_exclusive" ] || cat "$place/$file" > "$place/$name/$file"
  done
  echo 0 > "$place/$name/cgroup.procs"
  [ "$place" != "$scratch/all" ] || break
done
umount -R "$scratch/all"
exec unshare -C sh -c "$boot"
"""
BOOT = """
layer() { mkdir -p "$scratch/$2/upper" "$scratch/$2/work" "$3"
  mount -t overlay -o "lowerdir=$1,upperdir=$scratch/$2/upper,workdir=$scratch/$2/work" overlay "$3"; }
layer / host "$scratch/root"
cd "$scratch/root"
layer "$source" source opt/source
layer "$libraries" libraries opt/libraries
rm -rf opt/libraries/nacosdns* # the program is installed there from its source
look_at() { mkdir -p "$2"; mount --bind "$1" "$2"; mount -o remount,bind,ro "$2"; }
if [ "$python" != /usr ]; then # a place that no unit shuts, also for its shared library
  look_at "$python" opt/python
  echo /opt/python/lib > etc/ld.so.conf.d/0.conf
  ldconfig -r .
fi
mount -t proc -o nosuid,noexec,nodev proc proc
look_at proc/sys proc/sys
mount -t sysfs -o nosuid,noexec,nodev,ro sysfs sys
hierarchies sys/fs/cgroup
mount -t tmpfs -o mode=755 dev dev
while read -r file number; do mknod -m 666 "dev/$file" c 1 "$number"; done << END
null 3
zero 5
full 7
random 8
urandom 9
END
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=666,mode=620 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
for place in dev/shm run tmp; do mount -t tmpfs -o mode=1777 "${place#dev/}" "$place"; done
chmod 755 run
units=usr/lib/systemd/system
rm -rf etc/systemd/system "$units"/*.wants usr/lib/systemd/system-generators/* var/log/journal etc/resolv.conf
mkdir -p old etc/systemd/system "$units/sysinit.target.wants" "$units/sockets.target.wants"
ln -s ../systemd-journald.service "$units/sysinit.target.wants/"
ln -s ../systemd-journald.socket ../systemd-journald-dev-log.socket "$units/sockets.target.wants/"
echo "nameserver 192.0.2.53" > etc/resolv.conf
: > etc/fstab
echo bridge > etc/hostname
tr -d - < proc/sys/kernel/random/uuid > etc/machine-id
ip link set lo up
pivot_root . old
umount -l old
exec env -i container=test "PATH=$search" /usr/lib/systemd/systemd --system --unit=multi-user.target < /dev/null
"""
# Groups whose processes are gone, also those of a run that was cut off; one that is in use stays.
SWEEP = """
mount -t tmpfs -o mode=755 scratch "$scratch"
mkdir "$scratch/all"
hierarchies "$scratch/all"
groups_of "$scratch/all" "nacosdns-test-*" | while read -r group; do
  find "$group" -depth -type d -exec rmdir {} + 2> /dev/null || true
done
! groups_of "$scratch/all" "$name" | grep .
"""


def missing() -> list[str]:
    """What this machine lacks for it."""
    lacking = [tool for tool in TOOLS if not shutil.which(tool)]
    lacking += [] if SYSTEMD.exists() else ["systemd"]
    return lacking + ([] if os.geteuid() == 0 else ["root"])


class SystemdHost:
    """See the module."""

    def __init__(self, directory: Path) -> None:
        self._log = directory / "boot.log"
        self._scratch = directory / "scratch"
        self._scratch.mkdir()
        self._name = f"nacosdns-test-{os.getpid()}"
        self._holder: subprocess.Popen[bytes] | None = None
        self.init = 0

    def __enter__(self) -> Self:
        try:
            self._boot()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Whatever happened: PID 1 is killed, with it everything in its namespaces, then the groups are removed."""
        if self._holder is not None:
            if self.init:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.init, signal.SIGKILL)
            else:
                self._holder.kill()  # it takes its child along
            self._holder.wait()
        command = ["unshare", "-m", "sh", "-c", HIERARCHIES + SWEEP]
        for attempt in range(20):  # the kernel may need a moment to see that a group is empty
            swept = subprocess.run(command, env=self._environment(), capture_output=True, text=True, check=False)
            if swept.returncode == 0:
                break
            threading.Event().wait(0.1 * attempt)
        else:
            raise AssertionError(f"control groups are left: {swept.stdout}{swept.stderr}")

    def _environment(self) -> dict[str, str]:
        paths = {"source": ROOT, "python": sys.base_prefix, "libraries": sysconfig.get_path("purelib")}
        given = {key: str(value) for key, value in paths.items()} | {"scratch": str(self._scratch), "name": self._name}
        return given | {"boot": HIERARCHIES + BOOT, "search": SEARCH, "PATH": os.environ["PATH"]}

    def _boot(self) -> None:
        command = ["setpriv", "--pdeathsig", "KILL", "unshare", "-m", "-n", "-u", "-i", "-p", "-f", "--kill-child"]
        with self._log.open("wb") as log:
            self._holder = subprocess.Popen(
                [*command, "sh", "-c", HIERARCHIES + JOIN], env=self._environment(), stdout=log, stderr=log
            )
        until(self._has_booted, 30.0, "the start of systemd")
        until(lambda: self.tries("systemctl", "is-system-running").stdout.strip() == "running", 30.0, "its boot")

    def _has_booted(self) -> bool:
        assert self._holder is not None
        assert self._holder.poll() is None, self._log.read_text(encoding="utf-8")
        holder = self._holder.pid
        [*children] = Path(f"/proc/{holder}/task/{holder}/children").read_text(encoding="ascii").split()
        if not children or Path(f"/proc/{children[0]}/comm").read_text(encoding="ascii") != "systemd\n":
            return False
        self.init = int(children[0])
        return True

    def tries(self, *command: str, said: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        """What a program does that runs there, in /opt/source; ``said`` is its input."""
        inside = ["nsenter", "-t", str(self.init), *NAMESPACES, "env", "-C", "/opt/source"]
        given = {"PATH": SEARCH, "LANG": "C.UTF-8"} | environment
        return subprocess.run(
            [*inside, *command], input=said, env=given, capture_output=True, text=True, check=False, timeout=100
        )

    def run(self, *command: str, said: str = "", **environment: str) -> str:
        """What a program says there; it has to end well."""
        done = self.tries(*command, said=said, **environment)
        assert done.returncode == 0, f"{command}: {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def path(self, name: str) -> Path:
        """A file of that host; no link on the way may be absolute."""
        return Path(f"/proc/{self.init}/root{name}")

    def show(self, unit: str, fact: str) -> str:
        """One property of a unit."""
        return self.run("systemctl", "show", "--value", "-p", fact, unit)

    def journal(self, *arguments: str) -> list[str]:
        """The messages of the journal, without their heads."""
        self.run("journalctl", "--sync")
        return self.run("journalctl", "--no-pager", "-q", "-o", "cat", *arguments).splitlines()

    def enter(self) -> None:
        """The calling thread is in the network of that host from now on."""
        fd = os.open(f"/proc/{self.init}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            assert ctypes.CDLL(None, use_errno=True).setns(fd, 0) == 0, os.strerror(ctypes.get_errno())
        finally:
            os.close(fd)

    def there(self, function: Callable[[], Result]) -> Result:
        """What a function returns, or raises, that uses the network of that host."""
        results: list[Result] = []
        faults: list[BaseException] = []

        def work() -> None:
            try:
                self.enter()
                results.append(function())
            except BaseException as fault:  # noqa: BLE001  # it is raised again in the thread of the caller
                faults.append(fault)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        for fault in faults:
            raise fault
        return results[0]


class PacedThere(Paced):
    """A client on that host that asks at a steady rate; ``longest_s`` is the longest that an answer took."""

    def __init__(self, host: SystemdHost, name: str, *, per_second: int, patience_s: float) -> None:
        super().__init__(53, [name], per_second=per_second, patience_s=patience_s)
        self._host = host
        self.longest_s = 0.0

    def _take(self, sock: socket.socket, wait_s: float) -> None:
        if not self.replies:  # all that waited comes back at once: it has to fit in
            sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
        before = len(self.replies)
        super()._take(sock, wait_s)
        now = time.monotonic()
        for number in itertools.islice(reversed(self.replies), len(self.replies) - before):
            self.longest_s = max(self.longest_s, now - self.sent[number])

    def _run(self) -> None:
        self._host.enter()
        super()._run()
