"""Where our processes and operators find us: the state directory, the link's socket and the control socket in it.

Must not know: what is kept there, what is said on the sockets. Rules: what somebody removes is made again; a disk that is
read-only, full or broken stops nobody, the sockets are in memory then and stay there; what is wrong is said once and tried
every time.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nacosdns.config import DATABASE
from nacosdns.config_load import check_certificates
from nacosdns.edge import admin, logs, rights
from nacosdns.errors import StartError

if TYPE_CHECKING:
    from contextlib import ExitStack

    from nacosdns.config import Config
    from nacosdns.core.handover import Handover
    from nacosdns.edge.rights import User
    from nacosdns.ports import Log

LINK_SOCKET = "link.sock"
CONTROL_SOCKET = "control.sock"


def check_unmoved(config: Config, cache_dir: str, control_group: str) -> None:
    """StartError when a configuration wants others than these: whoever runs stays where it is found."""
    for key, before, after in (
        ("cache.dir", cache_dir, config.cache.dir),
        ("server.control_group", control_group, config.server.control_group),
    ):
        if before != after:
            raise StartError(f"{key} cannot change while nacosdns runs; restart it")


def whose_children(config: Config) -> User | None:
    """Whom the children run as. StartError when there is no such user, ConfigError when Nacos cannot be reached as it.

    Only its own rights count for the certificates: the keeper reads them.
    """
    user = rights.find_user(config.server.user)
    if config.nacos.ca_file:
        with rights.acting_as(user):
            check_certificates(config)
    return user


class Premises:
    """``user`` is whom the children run as. ``fault`` says why the state directory cannot be used, if so."""

    def __init__(self, directory: str, control_group: str, user: User | None) -> None:
        self.user = user
        self.fault = ""
        self._state = self._use(Path(directory))
        self._gid = rights.group_id(control_group)
        self._refused = ""
        self._log: Log = logs.log()

    def _use(self, directory: Path) -> Path:
        self.directory = directory
        self.link = admin.Listener(directory / LINK_SOCKET, 0o600)
        self.control = admin.Listener(directory / CONTROL_SOCKET, 0o660)
        return directory

    def __repr__(self) -> str:
        return f"<Premises {self.directory} {self.fault}>"

    @property
    def _is_refuge(self) -> bool:
        return self.directory != self._state

    @property
    def link_path(self) -> str:
        """Where fronts find the keeper."""
        return str(self.link.path)

    def open(self, resources: ExitStack) -> None:
        """Makes what is missing; ``resources`` gives it back. StartError when neither disk nor memory takes it."""
        try:
            self._make()
        except StartError as error:
            if not rights.is_of_the_disk(error):
                raise
            self.fault = str(error)
            self._open_refuge(error)
            self._log.error("disk.unusable", reason=self.fault, sockets=str(self.directory))
        resources.enter_context(self.link)
        resources.enter_context(self.control)

    def _open_refuge(self, fault: StartError) -> None:
        refused = []
        for directory in rights.refuges(self._state):
            self._use(directory)
            try:
                self._make()
            except StartError as error:
                refused.append(f"{directory.parent} ({_reason(error)})")
            else:
                return
        raise StartError(f"{fault}; the sockets find no other place: {', '.join(refused)}") from fault

    def _make(self) -> None:
        prepare = rights.prepare_refuge if self._is_refuge else rights.prepare_directory
        prepare(self.directory, self.user, self._gid)
        if not self._is_refuge:
            self._take_database()
        self.link.open(*(rights.owner(self.user) or (rights.UNCHANGED, rights.UNCHANGED)))
        self.control.open(rights.UNCHANGED, self._gid)

    def _take_database(self) -> None:
        if self.user:
            rights.hand_over(self._state, None, self.user, DATABASE)  # of a run as root

    def look(self) -> bool:
        """Makes removed files anew; whether the keeper has to be another one, for a new link or for a disk that is back."""
        return self._is_mended() | self._is_remade()

    def _is_mended(self) -> bool:
        if not self.fault or not rights.takes_a_file(self._state, self.user, self._gid):
            return False
        try:
            self._take_database()
        except StartError as error:
            self.fault = str(error)
            return False
        self._log.info("disk.usable", directory=str(self._state), was=self.fault)
        self.fault = ""
        return True

    def _is_remade(self) -> bool:
        if self.link.is_there and self.control.is_there:
            return False
        link_fd, refused = self.link.fileno(), self._refused
        try:
            self._make()
            self._refused = ""
            self._log.warning("sockets.remade", directory=str(self.directory))
        except StartError as error:
            self._refused = str(error)
            if self._refused != refused:
                self._log.warning("sockets.not_remade", reason=self._refused)
        return self.link.fileno() != link_fd

    def give_to(self, user: User | None) -> None:
        """Everything of the children belongs to another user from now on. StartError when that is refused."""
        before, self.user = self.user, user
        if not self.fault:
            rights.hand_over(self._state, before, user)
        rights.prepare_directory(self.directory, user, self._gid)
        self.link.give(*(rights.owner(user) or rights.ourselves()))

    def adopt(self, left: Handover) -> None:
        """Goes on where an earlier supervisor was found."""
        self._use(Path(left.directory))
        self.fault = left.disk_fault
        self.link.adopt(left.link)
        self.control.adopt(left.control)


def _reason(error: StartError) -> str:
    """In a word where the kernel has one: the sentence speaks of cache.dir."""
    return (isinstance(error.__cause__, OSError) and error.__cause__.strerror) or str(error)
