"""What a service manager says to the program it starts, and hears from it: sd_listen_fds(3) and sd_notify(3).

Must not know: what the sockets are for, when to say what. Rules: what is meant for another process is not ours; what was
read is taken out of the environment; a manager that does not listen hurts nobody.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from nacosdns.errors import StartError

if TYPE_CHECKING:
    from collections.abc import MutableMapping

FIRST_FD = 3
_LISTEN = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")
_US = 1_000_000


def given_sockets(environment: MutableMapping[str, str]) -> tuple[socket.socket, ...]:
    """The sockets that we were started with, no longer inheritable. StartError when that cannot be read."""
    pid, count, _ = (environment.pop(name, "") for name in _LISTEN)
    if not count or pid != str(os.getpid()):
        return ()
    try:
        fds = range(FIRST_FD, FIRST_FD + int(count))
    except ValueError as error:
        raise StartError(f"LISTEN_FDS={count} is no number; let systemd set it") from error
    for fd in fds:
        try:
            os.set_inheritable(fd, False)
        except OSError as error:
            raise StartError(f"LISTEN_FDS={count}, but descriptor {fd} is not open; let systemd set it") from error
    return tuple(_socket(fd) for fd in fds)


def _socket(fd: int) -> socket.socket:
    try:
        return socket.socket(fileno=fd)
    except OSError as error:
        raise StartError(f"descriptor {fd} of LISTEN_FDS is no socket; see the socket unit of systemd") from error


def watchdog_s(environment: MutableMapping[str, str]) -> float:
    """How often the manager wants to hear of us at least; 0 when it does not."""
    pid = environment.get("WATCHDOG_PID", "")
    microseconds = environment.get("WATCHDOG_USEC", "")
    meant = not pid or pid == str(os.getpid())
    return int(microseconds) / _US if meant and microseconds.isdigit() else 0.0


class Notifier:
    """Says things to the manager that listens at ``address`` (``NOTIFY_SOCKET``; a leading @ is an abstract socket).

    With an empty address nothing is said.
    """

    def __init__(self, address: str) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address

    def __repr__(self) -> str:
        return f"<Notifier {self._address!r}>"

    def __bool__(self) -> bool:
        return bool(self._address)

    def say(self, **facts: str | int) -> bool:
        """Sends ``KEY=VALUE`` lines in one datagram; whether it was taken."""
        if not self._address:
            return False
        message = "\n".join(f"{key}={str(value).replace(chr(10), ' ')}" for key, value in facts.items())
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)
                sock.sendto(message.encode(), self._address)
        except OSError:
            return False
        return True
