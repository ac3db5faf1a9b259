"""What a bridge stands on in this host and what changes there without telling: addresses, interfaces, a port, a password.

Must not know: who reads the sockets, what the password is for. Rules: what is missing is said once and looked for again;
a late password or a taken port for web stops nobody who answers DNS; nothing here ends a process.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

from nacosdns import config as configuration
from nacosdns.config_load import read_password
from nacosdns.core import access
from nacosdns.edge import host, logs, sockets
from nacosdns.errors import ConfigError, StartError

if TYPE_CHECKING:
    from nacosdns.config import Config
    from nacosdns.edge.sockets import Listeners
    from nacosdns.ports import Log

_UNREAD = -1


class Surroundings:
    """``present`` are the addresses of this host as text. ``web_fault`` says why web cannot listen, ``""`` when it can.

    ``web`` is the socket on which it does: what asks while no web is there waits in it for the next one.
    """

    def __init__(self, listeners: Listeners) -> None:
        self.present: set[str] = set()
        self.web_fault = ""
        self.web: socket.socket | None = None
        self._web_listen = ""
        self._listeners = listeners
        self._seen: dict[host.HostAddress, None] = {}
        self._present: tuple[host.HostAddress, ...] = ()
        self._log: Log = logs.log()

    def __repr__(self) -> str:
        return f"<Surroundings {len(self.present)} addresses {self.web_fault}>"

    def want(self, config: Config) -> bool:
        """Opens what this configuration needs; whether the set of sockets changed. StartError leaves all as it was."""
        return self._want(config, self._look_at_addresses())

    def _want(self, config: Config, present: tuple[host.HostAddress, ...]) -> bool:
        given = {one.host for one in self._listeners.hold() if one.given}  # which the service manager has for good
        kept = (item for item in self._seen if str(item.address) in given)
        self._seen = dict.fromkeys([*sockets.meant(config.server.listen, present), *kept])
        changed = self._listeners.want(config.server.listen, config.server.fronts, self._seen)
        for entry in self._listeners.missing if changed else ():
            self._log.warning("listen.interface_missing", entry=entry)
        for endpoint in self._listeners.late if changed else ():
            self._log.warning("listen.address_missing", address=str(endpoint))
        return changed

    def look(self, config: Config) -> bool:
        """What came meanwhile; whether the set of sockets changed."""
        before = set(self._listeners.wanted)
        present = self._look_at_addresses()
        try:
            changed = self._want(config, present)
        except StartError as error:
            self._log.warning("listen.refused", reason=str(error))
            changed = False
        came, went = self._listeners.look(self.present)
        now = set(self._listeners.wanted)
        for endpoint in came | (now - before - self._listeners.late):
            self._log.info("listen.address_appeared", address=str(endpoint))
        for endpoint in went | (before - now):
            self._log.warning("listen.address_gone", address=str(endpoint))
        return changed

    def _look_at_addresses(self) -> tuple[host.HostAddress, ...]:
        """All of them; those of the last look when the kernel tells of none, for want of a descriptor perhaps."""
        self._present = host.addresses() or self._present
        self.present.clear()
        self.present |= {str(item.address) for item in self._present}
        return self._present

    def warn_of_strangers(self, config: Config) -> None:
        """Says that everybody may ask, when others than this host can."""
        everybody = access.open_entries(config.server.allow)
        if everybody and not self._listeners.is_only_local:
            self._log.warning("access.open", allow=",".join(everybody), remedy="name your networks in server.allow")

    def has_room_for_web(self, config: Config) -> bool:
        """Whether web can listen where it is to; the log says once why not."""
        before, self.web_fault = self.web_fault, self._open_web(config.web.listen)
        if self.web_fault and self.web_fault != before:
            self._log.error("web.unusable", reason=self.web_fault)
        return not self.web_fault

    def can_have_two_webs(self, config: Config) -> bool:
        """Whether a second web could read the socket beside the first one: not while the first one opened it by itself."""
        return not self._open_web(config.web.listen)

    def _open_web(self, listen: str) -> str:
        """Opens the socket of web, if it is not open; why that cannot be, if so."""
        if self.web is None:
            try:
                self.web, self._web_listen = _listening(listen), listen
            except StartError as error:
                return str(error)
        return ""

    def adopt_web(self, fd: int, listen: str, config: Config) -> None:
        """Goes on with the socket of web that an earlier supervisor left (-1: none), if it is still wanted."""
        if fd >= 0:
            self.web, self._web_listen = socket.socket(fileno=fd), listen
            self.forget_web(config.web.listen)

    def forget_web(self, listen: str = "") -> None:
        """Another place was configured, or none: nothing is wrong with that yet, and nobody waits in the old one."""
        self.web_fault = ""
        if self.web and listen != self._web_listen:
            self.web.close()
            self.web = None


def check_web(config: Config) -> None:
    """StartError when web could not listen where it is to."""
    if config.web.listen:
        _listening(config.web.listen).close()


def _listening(listen: str) -> socket.socket:
    return sockets.listening(sockets.Endpoint(*configuration.host_port(listen)), "web.listen")


class Secret:
    """The password for Nacos. ``value`` is the last good one: ``""`` while there was none; ``refused``: why it is old."""

    def __init__(self, value: str = "") -> None:
        self.value = value
        self._stamp = _UNREAD
        self.refused = ""
        self._log: Log = logs.log()

    def __repr__(self) -> str:
        return f"<Secret {'known' if self.value else 'unknown'} {self.refused}>"

    def look(self, config: Config) -> bool:
        """Reads the file again when it changed, or could not be read before; whether there is another password."""
        stamp = _written_ns(config)
        if stamp == self._stamp:
            return False
        before = self.value
        try:
            self.take(config, read_password(config))
        except ConfigError as error:
            self._stamp = _UNREAD
            if str(error) != self.refused:
                self._log.warning("password.unreadable", reason=str(error))  # the one we have stays
            self.refused = str(error)
        else:
            self._stamp = stamp  # as it was before we read: what is written meanwhile is seen at the next look
        return self.value != before

    def take(self, config: Config, value: str) -> None:
        """This was read for this configuration."""
        self.value = value
        self._stamp = _written_ns(config)
        self.refused = ""


def _written_ns(config: Config) -> int:
    """When the password file or its rights were last changed; 0 when there is none."""
    try:
        return Path(config.nacos.password_file).stat().st_ctime_ns if config.nacos.password_file else 0
    except OSError:
        return 0
