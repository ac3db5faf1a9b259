"""/etc/resolv.conf as a file that others use while we change it: looked at, replaced, given back; and the copy of it.

Must not know: what should stand in it. Rules: whenever we are killed, a whole text stands there, the old or the new one
(where only writing in place is left, a reader may meet the write itself, no longer); a link is replaced, not written
through, unless its folder cannot be written; owner, mode and label stay; nobody but the guard may write the copy that
the guard believes.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
from typing import TYPE_CHECKING

import msgspec

from nacosdns.core.resolvtext import Found, decode_saved, encode_saved, is_ours
from nacosdns.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from nacosdns.core.resolvtext import Saved

CHANGED, RENAMED, IN_PLACE = "changed meanwhile", "replaced", "written in place"
LABEL = "security.selinux"
MANAGED = ("/run/systemd/resolve/", "/run/NetworkManager/", "/usr/lib/systemd/")
"""Folders whose files belong to a program that writes them anew: never written through a link."""
_BYTES_MAX = 1 << 20
_NO_RENAME = {errno.EBUSY, errno.EXDEV, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT}
_FS_IOC_GETFLAGS, _FS_IMMUTABLE_FL = 0x80086601, 0x10  # linux/fs.h


def look(path: Path) -> Found:
    """The file as it is now. HostError when it is none that can be read."""
    try:
        kind, target = "file", ""
        if stat.S_ISLNK(path.lstat().st_mode):
            kind, target = "link", str(path.readlink())
        return _read(path, kind, target)
    except (FileNotFoundError, NotADirectoryError):
        return Found(kind="missing", uid=os.geteuid(), gid=os.getegid())
    except OSError as error:
        raise _refused(path, error, "read") from error


def _read(path: Path, kind: str, target: str) -> Found:
    ours = Found(kind=kind, target=target, uid=os.geteuid(), gid=os.getegid())
    try:
        facts = path.stat()
    except FileNotFoundError:
        if kind == "link":
            return ours  # it leads nowhere yet
        raise
    if not stat.S_ISREG(facts.st_mode):
        raise HostError(f"{path} is no file; remove it, or set host.resolv_conf")
    with path.open("rb") as file:
        text = file.read(_BYTES_MAX)
    found = msgspec.structs.replace(ours, text=text, label=_label(path))
    if kind == "link":
        return found  # owner and mode of what it leads to are those of another program
    mode = stat.S_IMODE(facts.st_mode)
    return msgspec.structs.replace(found, mode=mode, uid=facts.st_uid, gid=facts.st_gid)


def _label(path: Path) -> bytes:
    """The SELinux label; none where there is no SELinux."""
    try:
        return os.getxattr(path, LABEL)
    except OSError:
        return b""


def put(path: Path, text: bytes, before: Found) -> str:
    """Makes ``text`` the content, if the file is still ``before``: CHANGED, RENAMED or IN_PLACE. HostError says why not."""
    return _swap(
        path, before, lambda temporary: _write_new(temporary, text, before), lambda: _overwrite(path, text, before)
    )


def _swap(path: Path, before: Found, make: Callable[[Path], None], in_place: Callable[[], str]) -> str:
    """Renames what ``make`` makes over the path; where that cannot be (a bind mount, a closed folder), ``in_place``."""
    temporary = path.with_name(f".{path.name}.nacosdns")
    try:
        temporary.unlink(missing_ok=True)  # of a guard that was killed; we hold the lock
        make(temporary)
        try:
            if look(path) != before:
                return CHANGED
            temporary.rename(path)
        finally:
            temporary.unlink(missing_ok=True)
        _sync_folder(path)
    except OSError as error:
        if error.errno not in _NO_RENAME:
            raise _refused(path, error, "replaced") from error
        return in_place()
    return RENAMED


def _write_new(temporary: Path, text: bytes, before: Found) -> None:
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        if file.write(text) < len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if before.label:
            os.setxattr(descriptor, LABEL, before.label)
        if (before.uid, before.gid) != (os.geteuid(), os.getegid()):
            os.fchown(descriptor, before.uid, before.gid)
        os.fchmod(descriptor, before.mode)
        os.fsync(descriptor)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _overwrite(path: Path, text: bytes, before: Found) -> str:
    """Writes into the file itself. One write, padded with empty lines to the old length: no kill leaves half a text."""
    if before.kind == "link" and _is_managed(path):
        raise HostError(
            f"{path} is a link to {before.target}, which another program writes, and {path.parent} cannot be written;"
            " make the folder writable, or let that program name us"
        )
    flags = os.O_RDWR | os.O_CLOEXEC | (0 if before.kind == "link" else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        raise _refused(path, error, "written") from error
    try:
        if os.pread(descriptor, _BYTES_MAX, 0) != before.text:
            return CHANGED
        _overwrite_open(descriptor, text, before.text)
    except OSError as error:
        raise _refused(path, error, "written") from error
    finally:
        os.close(descriptor)
    return IN_PLACE


def _overwrite_open(descriptor: int, text: bytes, old: bytes) -> None:
    padded = text.ljust(len(old), b"\n")
    if os.pwrite(descriptor, padded, 0) < len(padded):
        os.pwrite(descriptor, old, 0)
        os.ftruncate(descriptor, len(old))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.ftruncate(descriptor, len(text))
    os.fsync(descriptor)


def _is_managed(path: Path) -> bool:
    return str(path.resolve()).startswith(MANAGED)


def give_back(path: Path, saved: Saved) -> bool:
    """Puts back what stood there before us; False when somebody else's text stands there now, which stays."""
    found = look(path)
    if not is_ours(found.text):
        return False
    match saved.kind:
        case "link" if found.kind != "link":
            did = _swap(
                path, found, lambda temporary: temporary.symlink_to(saved.target), lambda: _no_link(path, saved)
            )
        case "missing":
            return _remove(path)
        case _:
            did = put(path, saved.text, found)
    return did != CHANGED


def _remove(path: Path) -> bool:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise _refused(path, error, "removed") from error
    return True


def _no_link(path: Path, saved: Saved) -> str:
    raise HostError(f"{path} cannot be made a link to {saved.target} again ({path.parent} cannot be written)")


def read_saved(path: Path) -> Saved | None:
    """The copy; None when there is none. HostError when another user could have written it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise HostError(f"{path} cannot be read ({error.strerror}); remove it") from error
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid():
            raise HostError(f"{path} was not written by the user of the guard; remove it")
        return decode_saved(os.pread(descriptor, _BYTES_MAX, 0))
    except OSError as error:
        raise HostError(f"{path} cannot be read ({error.strerror}); remove it") from error
    finally:
        os.close(descriptor)


def write_saved(path: Path, saved: Saved) -> None:
    """Writes the copy, whole or not at all. HostError says why not."""
    temporary = path.with_name(f".{path.name}.new")
    try:
        temporary.unlink(missing_ok=True)
        new = Found(kind="file", uid=os.geteuid(), gid=os.getegid())
        _write_new(temporary, encode_saved(saved), new)
        temporary.rename(path)
        _sync_folder(path)
    except OSError as error:
        raise HostError(
            f"{path} cannot be written ({error.strerror}): nothing is changed without a copy; see cache.dir"
        ) from error


def drop_saved(path: Path) -> None:
    """Removes the copy. HostError says why not."""
    _remove(path)


def lock(directory: Path) -> int:
    """A descriptor that holds the guard's lock on the state directory. HostError when another guard has it."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise HostError(f"cache.dir {directory} cannot be opened ({error.strerror}); start nacosdns first") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise HostError(f"another guard holds {directory}; stop it first") from error
    return descriptor


def is_locked(directory: Path) -> bool:
    """Whether a guard has the lock. Asking takes it for a moment; a guard that starts just then tries again."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise HostError(f"{directory} cannot be opened ({error.strerror}); run it as root") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def unlock(descriptor: int) -> None:
    """Gives the lock back."""
    os.close(descriptor)


def is_immutable(path: Path) -> bool:
    """Whether the file has the flag of ``chattr +i``; False where the file system has no flags."""
    try:
        with path.open("rb") as file:
            flags = fcntl.ioctl(file, _FS_IOC_GETFLAGS, bytes(8))  # asks, changes nothing
    except OSError:
        return False
    return bool(struct.unpack("=Q", flags)[0] & _FS_IMMUTABLE_FL)


def _refused(path: Path, error: OSError, word: str) -> HostError:
    remedy = "see the rights of the file and its folder"
    if is_immutable(path):
        remedy = f"it is immutable: chattr -i {path}"
    elif error.errno == errno.EROFS:
        remedy = "the file system is read-only"
    elif error.errno in {errno.EACCES, errno.EPERM}:
        remedy = "run the guard as root, or with CAP_DAC_OVERRIDE"
    return HostError(f"{path} cannot be {word} ({error.strerror}); {remedy}")
