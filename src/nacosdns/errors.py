"""Every exception of nacosdns, drawn as a tree.

NacosdnsError
├─ ConfigError            the configuration is wrong: file, line, key, remedy            exit 2
├─ StartError             this host does not let us start: port, right, directory        exit 2
│  └─ OutOfReach          our user does not get to the state directory
├─ RegistryError          the registry did not do what was asked
│  ├─ RegistryDown        unreachable, or no answer within the deadline
│  ├─ RegistryRefused     it answered no: wrong user, token, right
│  │  └─ RegistryNameRefused  it calls the name itself illegal: no such service can exist
│  └─ RegistryUnsupported a server generation that we cannot speak to
├─ WireError              bytes that are not a DNS message we can answer
├─ UpstreamError          a resolver could not be asked
├─ StoreError             the disk did not do what was asked
│  └─ StoreDamaged        what is on disk cannot be read: it was set aside
├─ HostError              a file of this host could not be read or written as it must be
├─ UpgradeError           the new code does not take the place of the running one
├─ LinkError              a frame between our processes that we cannot read
├─ OutputError            standard output does not take what a command says
└─ ControlError           the control socket did not answer, or answered no
   ├─ ControlSilent       somebody listens there and says nothing
   └─ ControlForeign      the bridge is of a release that speaks otherwise

Rule: a foreign exception is turned into one of these at the edge it came through, with ``from``.
"""


class NacosdnsError(Exception):
    """Root of everything that nacosdns raises on purpose."""


class ConfigError(NacosdnsError):
    """A configuration that cannot be used; says what, where and what to do.

    ``key`` is the dotted key (``server.listen``), ``file`` the file or ``environment``, ``line`` is 0 when unknown.
    """

    def __init__(self, what: str, *, file: str = "", line: int = 0, key: str = "", remedy: str = "") -> None:
        self.what = what
        self.file = file
        self.line = line
        self.key = key
        self.remedy = remedy
        super().__init__(str(self))

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.file and self.line else self.file
        parts = [part for part in (where, self.key, self.what) if part]
        text = ": ".join(parts)
        return f"{text}; {self.remedy}" if self.remedy else text


class StartError(NacosdnsError):
    """This host does not let us start. The message names the thing in the way and the remedy."""


class OutOfReach(StartError):
    """The user of our children does not get to the state directory; DNS can do without."""


class RegistryError(NacosdnsError):
    """The registry did not do what was asked."""


class RegistryDown(RegistryError):
    """The registry cannot be reached, or did not answer within the deadline."""


class RegistryElsewhere(RegistryDown):
    """Something answers there, but knows no such path: another program, or Nacos under another context path."""


class RegistryRefused(RegistryError):
    """The registry answered no: wrong user or password, expired token, missing right."""


class RegistryNameRefused(RegistryRefused):
    """The registry calls the name (or another value) itself illegal: no service of that name can exist there."""


class RegistryUnsupported(RegistryError):
    """The registry is of a generation that we cannot speak to; the message names its version."""


class WireError(NacosdnsError):
    """Bytes that are not a DNS message we can answer. ``reason`` is a short word for a counter."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class UpstreamError(NacosdnsError):
    """A resolver could not be asked."""


class StoreError(NacosdnsError):
    """The disk did not do what was asked; answers go on without it."""


class StoreDamaged(StoreError):
    """What is on disk cannot be read. It was set aside, never deleted."""


class HostError(NacosdnsError):
    """A file of this host, resolv.conf above all, could not be read or written. Says which, why, and the remedy."""


class UpgradeError(NacosdnsError):
    """The new code cannot or must not take the place of the running one, which goes on. The message says why."""


class LinkError(NacosdnsError):
    """A frame between our processes that cannot be read: the connection is dropped and made anew."""


class OutputError(NacosdnsError):
    """Standard output does not take what a command says: it is closed, full or broken."""


class ControlError(NacosdnsError):
    """The control socket did not answer, or answered no."""


class ControlSilent(ControlError):
    """Somebody listens on the control socket and does not answer; the message has its pid and whether it is stopped."""


class ControlForeign(ControlError):
    """The running bridge is of a release that speaks another version of the control protocol."""


class UsageError(ControlError):
    """A command line means nothing: what is wrong with which word."""
