"""Users and groups of this host, and whose the state directory is.

Must not know: what is kept there. Rule: what is missing on the host is a StartError that says how to make it; nothing
is changed that is right already.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
from typing import TYPE_CHECKING, NamedTuple

from nacosdns.errors import StartError

if TYPE_CHECKING:
    from pathlib import Path

UNCHANGED = -1


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
    except OSError as error:
        if error.errno == errno.EROFS:
            raise _read_only(directory) from error
        raise StartError(
            f"cache.dir {directory} cannot be made ({error.strerror}); make it, or set cache.dir to another directory"
        ) from error
    if os.statvfs(directory).f_flag & os.ST_RDONLY:
        raise _read_only(directory)
    if not user and not os.access(directory, os.W_OK | os.X_OK):
        raise StartError(f"cache.dir {directory} is not ours to write; chown it, or set cache.dir to another directory")


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
