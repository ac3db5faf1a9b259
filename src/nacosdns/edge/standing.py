"""How this process stands among the others of the host: its name, when it dies, who goes before it, its rights.

Must not know: what it does. Rules: Linux alone has these (prctl(2), capabilities(7)), elsewhere nothing happens; a process
only ever steps back, for which no right is needed; rights beside those of the user are the supervisor's alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_CAP_AMBIENT, _CAP_AMBIENT_RAISE, _CAP_AMBIENT_CLEAR_ALL = 47, 2, 4
_NAME_BYTES = 15
_STATUS = Path("/proc/self/status")
_OOM_SCORE = Path("/proc/self/oom_score_adj")
_OOM_SCORE_MAX = 1000


def call_me(name: str) -> None:
    """The name that ps, top and killall show, cut to 15 bytes."""
    _prctl(_PR_SET_NAME, ctypes.create_string_buffer(name.encode()[:_NAME_BYTES]))


def dead_children(name: str) -> list[int]:
    """The children of this name that have ended and were not waited for."""
    found = []
    try:
        pids = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split()
        for pid in pids:
            left, _, right = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
            if left.partition("(")[2] == name and right.split()[:1] == ["Z"]:
                found.append(int(pid))
    except OSError:
        return found  # no such file on this kernel, or one that went away: at the next look
    return found


def is_stopped(pid: int) -> bool:
    """Whether somebody stopped this process (SIGSTOP); it does nothing until SIGCONT."""
    try:
        _, _, right = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
    except OSError:
        return False
    return right.split()[:1] in (["T"], ["t"])


def command_line(pid: int) -> tuple[list[str], str]:
    """The words that a process was started with, and where it stands ("" when we may not know); nothing of none."""
    try:
        words = os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes()).split("\0")[:-1]
    except OSError:
        return [], ""
    try:
        return words, str(Path(f"/proc/{pid}/cwd").readlink())
    except OSError:
        return words, ""


def die_with_the_parent() -> None:
    """The kernel kills us when the one who started us dies."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: object, third: int = 0) -> None:
    if sys.platform == "linux":
        ctypes.PyDLL(None).prctl(option, value, third, 0, 0)


_MEANT = {"SIGINT", "SIGTERM", "SIGQUIT", "SIGHUP", "SIGUSR2", "SIGKILL", "SIGSTOP", "SIGTSTP", "SIGCONT"}
_FAULTS = {"SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV", "SIGSYS", "SIGTRAP"}
_HARMLESS = {"SIGCHLD", "SIGURG", "SIGWINCH"}


def strays() -> list[int]:
    """The signals that nobody means for us and that would end or stop a process: SIGUSR1, SIGALRM, SIGPROF and so on."""
    known = {signal.Signals[name] for name in _MEANT | _FAULTS | _HARMLESS}
    return sorted({int(number) for number in signal.valid_signals()} - known)


def ignore_strays(*more: signal.Signals) -> None:
    """From now on, here and in everything that we start or become: what is ignored stays so over an exec.

    ``more`` are signals that mean something to others of us only.
    """
    for number in (*strays(), *more):
        signal.signal(number, signal.SIG_IGN)


def step_back(oom_score: int, nice: int) -> None:
    """Adds to what was inherited: the kernel takes us before others when memory is short, and lets others run first."""
    with contextlib.suppress(OSError):  # a sandbox forbids or hides it: the kernel judges us like the others
        os.nice(nice)
    if oom_score and sys.platform == "linux":
        with contextlib.suppress(OSError):
            present = int(_OOM_SCORE.read_text())
            _OOM_SCORE.write_text(str(min(present + oom_score, _OOM_SCORE_MAX)))


def keep_rights() -> int:
    """The rights that we were given beside our user (ambient capabilities) are ours alone: no child has them.

    Returns them as bits, for ``pass_rights``.
    """
    rights = _ambient()
    if rights:
        _prctl(_PR_CAP_AMBIENT, _CAP_AMBIENT_CLEAR_ALL)
    return rights


def pass_rights(rights: int) -> None:
    """What is executed from now on has these rights again."""
    for bit in range(rights.bit_length()):
        if rights >> bit & 1:
            _prctl(_PR_CAP_AMBIENT, _CAP_AMBIENT_RAISE, bit)


def _ambient() -> int:
    if sys.platform != "linux":
        return 0
    lines = _STATUS.read_text().splitlines()
    return int(next((line.split()[1] for line in lines if line.startswith("CapAmb:")), "0"), 16)
