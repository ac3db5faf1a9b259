"""Users and groups of this host, and whose the state directory is.

Must not know: what is kept there. Rule: what is missing on the host is a StartError that says how to make it; nothing
is changed that is right already.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import hashlib
import os
import pwd
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from nacosdns.errors import OutOfReach, StartError

if TYPE_CHECKING:
    from collections.abc import Iterator

UNCHANGED = -1
_DISK_FAULTS = {errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO}


class User(NamedTuple):
    """Whom the children run as."""

    name: str
    uid: int
    gid: int


def find_user(name: str) -> User | None:
    """The user for children; None when there is nothing to change: no name, or we are not root."""
    if os.geteuid() != 0 or not name:
        return None
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise StartError(
            f"the user {name} does not exist; make it (useradd --system --no-create-home {name}),"
            ' or set server.user = "" to keep running as root'
        ) from None
    return User(name, entry.pw_uid, entry.pw_gid)


def owner(user: User | None) -> tuple[int, int] | None:
    """The (uid, gid) to become; None to stay what we are."""
    return (user.uid, user.gid) if user else None


def ourselves() -> tuple[int, int]:
    """Our own (uid, gid)."""
    return os.geteuid(), os.getegid()


def group_id(name: str) -> int:
    """The id of a group; ``UNCHANGED`` for no name."""
    if not name:
        return UNCHANGED
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise StartError(f"the group {name} does not exist; make it, or set server.control_group") from None


def prepare_directory(directory: Path, user: User | None, gid: int) -> None:
    """Makes the state directory, writable for ``user`` and open for the group ``gid`` (``UNCHANGED``: the user's)."""
    try:
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        if user:
            os.chown(directory, user.uid, user.gid if gid == UNCHANGED else gid)
        elif gid != UNCHANGED:
            os.chown(directory, UNCHANGED, gid)
    except OSError as error:
        if error.errno == errno.EROFS:
            raise _read_only(directory) from error
        raise StartError(
            f"cache.dir {directory} cannot be made ({error.strerror}); make it, or set cache.dir to another directory"
        ) from error
    if os.statvfs(directory).f_flag & os.ST_RDONLY:
        raise _read_only(directory) from OSError(errno.EROFS, os.strerror(errno.EROFS))
    if user:
        _check_reach(directory, user)
    elif not os.access(directory, os.W_OK | os.X_OK):
        raise StartError(f"cache.dir {directory} is not ours to write; chown it, or set cache.dir to another directory")


def _check_reach(directory: Path, user: User) -> None:
    """StartError when this user, whose the directory is, does not get to it: a folder above it may be shut."""
    with acting_as(user):
        try:
            directory.stat()
        except PermissionError as error:
            shut = next(above for above in directory.parents if os.access(above, os.F_OK, effective_ids=True))
            raise OutOfReach(
                f"cache.dir {directory} is out of reach for the user {user.name}: {shut} is shut to others;"
                f" chmod o+x {shut}, or set cache.dir to another directory"
            ) from error


def takes_a_file(directory: Path, user: User | None, gid: int) -> bool:
    """Whether the state directory can be used by now, that could not be at the start."""
    try:
        prepare_directory(directory, user, gid)
        with tempfile.TemporaryFile(dir=directory):
            return True
    except (StartError, OSError):
        return False


@contextlib.contextmanager
def acting_as(user: User | None) -> Iterator[None]:
    """With the rights of this user (None: ours), for a moment; this process has one thread."""
    if user is None:
        yield
        return
    uid, gid, groups = os.geteuid(), os.getegid(), os.getgroups()
    os.setgroups([])
    os.setegid(user.gid)
    os.seteuid(user.uid)
    try:
        yield
    finally:
        os.seteuid(uid)
        os.setegid(gid)
        os.setgroups(groups)


def is_of_the_disk(error: StartError) -> bool:
    """Whether the directory is at fault (read-only, full, broken, out of reach), and not a right of ours or a name."""
    by_disk = isinstance(error.__cause__, OSError) and error.__cause__.errno in _DISK_FAULTS
    return by_disk or isinstance(error, OutOfReach)


def refuges(directory: Path) -> tuple[Path, ...]:
    """In memory: where the sockets of a state directory are whose disk takes no file, the best place first."""
    digest = hashlib.blake2b(str(directory).encode(), digest_size=6).hexdigest()
    return Path("/run/nacosdns") / digest, Path(f"/dev/shm/nacosdns-{os.geteuid()}") / digest  # noqa: S108  # only what is ours is used


def prepare_refuge(directory: Path, user: User | None, gid: int) -> None:
    """As ``prepare_directory``; StartError also when somebody else made it."""
    for path in (directory.parent, directory):
        found = path.lstat() if path.is_symlink() or path.exists() else None
        if found and (not stat.S_ISDIR(found.st_mode) or found.st_uid not in {os.geteuid(), user.uid if user else -1}):
            raise StartError(f"{path} is not ours; remove it")
    prepare_directory(directory, user, gid)
    directory.parent.chmod(0o755)


def hand_over(directory: Path, before: User | None, user: User | None, begin: str = "") -> None:
    """What the children of ``before`` wrote there belongs to ``user`` from now on. StartError when that is refused.

    Only files whose names ``begin`` so; only plain files of that owner without another name are touched: nobody can slip us a file of somebody else.
    """
    uid = before.uid if before else os.geteuid()
    new = user or User("", *ourselves())
    try:
        for path in directory.iterdir():
            if not path.name.startswith(begin) or not stat.S_ISREG(path.lstat().st_mode):
                continue
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                found = os.fstat(fd)
                if stat.S_ISREG(found.st_mode) and found.st_uid == uid and found.st_nlink == 1:
                    os.fchown(fd, new.uid, new.gid)
            finally:
                os.close(fd)
    except OSError as error:
        raise StartError(f"{directory} cannot be given to the user {new.name} ({error.strerror})") from error


def become(user: User | None) -> None:
    """Gives up being root for good, in a process of its own."""
    if user:
        os.setgroups([])
        os.setgid(user.gid)
        os.setuid(user.uid)


def _read_only(directory: Path) -> StartError:
    return StartError(
        f"cache.dir {directory} is on a read-only file system; remount it read-write or name another cache.dir"
    )


def cannot_run(user: User | None, error: PermissionError) -> StartError:
    """The error to raise when the first child cannot be started."""
    who = f"the user {user.name}" if user else "this user"
    return StartError(
        f"{who} cannot run {error.filename}; install Python and nacosdns where that user may read them, or set"
        " server.user"
    )
