from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from fakes.running import TESTS, until
from nacosdns import config as configuration
from nacosdns.child import REASON_CHARS_MAX, in_a_sentence
from nacosdns.config import Config
from nacosdns.core import frames, metrics
from nacosdns.edge.page import Page, Role, State, memory_file
from nacosdns.errors import ConfigError, StoreError


class Born:
    """One child with our hand in the supervisor's place."""

    def __init__(self, module: str, role: str = "keeper", door: tuple[str, ...] = ()) -> None:
        self.channel, theirs = socket.socketpair()
        self.channel.settimeout(15)
        self.page = Page.create()
        self.page.claim(Role[role.upper()], 0, 1)
        self.page.counters[metrics.PUSHES.index()] = 5  # what the one before it left
        self.page.counters[metrics.SUBSCRIPTIONS.index()] = 9
        setup = frames.ChildSetup(
            role, 1, theirs.fileno(), self.page.fd, "", configuration.encode(Config()), password="s3cret"
        )
        setup_fd = memory_file("setup", frames.encode(setup))
        self.process = subprocess.Popen(
            [sys.executable, "-m", *door, module, str(setup_fd)],
            pass_fds=(theirs.fileno(), setup_fd, self.page.fd),
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": ":".join([str(TESTS), *filter(None, sys.path)])},
        )
        os.close(setup_fd)
        theirs.close()

    def tell(self, frame: frames.ChannelFrame) -> None:
        self.channel.sendall(frames.framed(frame))

    def hear(self) -> frames.ChannelFrame:
        size = int.from_bytes(self._exactly(frames.LENGTH_BYTES), "big")
        return frames.decode_channel(self._exactly(size))

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.channel.recv(size - len(data))
            assert part, "the channel ended"
            data += part
        return data

    def end(self) -> tuple[int, str]:
        """Exit code and what it logged."""
        _, logged = self.process.communicate(timeout=15)
        return self.process.returncode, logged

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        self.channel.close()
        self.page.close()
        os.close(self.page.fd)


@pytest.fixture
def born():
    made: list[Born] = []

    def make(module: str = "fakes.child_idle", role: str = "keeper", door: tuple[str, ...] = ()) -> Born:
        made.append(Born(module, role, door))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_child_says_ready_and_its_heart_beats_in_its_page(born):
    child = born()

    assert child.hear() == frames.Ready(7)
    assert child.page.state is State.READY
    first = child.page.beat_ns
    until(lambda: child.page.beat_ns > first, 2.0, "a heartbeat")


def test_a_child_answers_requests_one_beside_the_other(born):
    child = born()
    child.hear()
    child.tell(frames.Ask(1, "cache.list"))
    child.tell(frames.Ask(2, "services", {"name": msgspec.Raw(frames.encode("x"))}))
    quick, slow = child.hear(), child.hear()

    assert (quick.id, msgspec.msgpack.decode(quick.body)["arguments"]) == (2, {"name": "x"})
    assert (slow.id, slow.error) == (1, "no answer within 1 s")


def test_a_request_that_nobody_waits_for_any_more_is_not_carried_out(born):
    child = born()
    child.hear()
    child.process.send_signal(signal.SIGSTOP)
    child.tell(frames.Ask(1, "echo", until=time.monotonic() + 0.2))
    child.tell(frames.Ask(2, "echo", until=time.monotonic() + 60))
    time.sleep(0.3)
    child.process.send_signal(signal.SIGCONT)

    assert child.hear().id == 2


def test_a_no_and_a_fault_are_answers_too(born):
    child = born()
    child.hear()
    child.tell(frames.Ask(1, "cache.accept"))
    child.tell(frames.Ask(2, "fault"))

    assert child.hear().error == "nothing is protected"
    assert child.hear().error == "fault failed: ZeroDivisionError (see the log)"
    child.tell(frames.Drain(1.0))
    code, logged = child.end()
    assert code == 0
    assert logged.count("command.failed") == 1


def test_an_answer_too_long_for_the_channel_is_a_no_and_does_not_cost_the_child(born):
    child = born()
    child.hear()
    child.tell(frames.Ask(1, "echo", {"name": msgspec.Raw(frames.encode("x" * frames.CHANNEL_BYTES_MAX))}))
    child.tell(frames.Ask(2, "echo"))

    assert {child.hear().error, child.hear().error} == {"", "the answer is too long (64 MiB) to be told"}


def test_a_drained_child_exits_0(born):
    child = born()
    child.hear()
    child.tell(frames.Drain(1.0))
    code, logged = child.end()

    assert code == 0
    assert "fake.drained" in logged
    assert child.page.state is State.DRAINING


def test_sigterm_drains_too_and_ctrl_c_is_the_supervisors_business(born):
    child = born()
    child.hear()
    child.process.send_signal(signal.SIGINT)
    child.process.send_signal(signal.SIGHUP)
    child.process.send_signal(signal.SIGUSR2)
    child.process.send_signal(signal.SIGTERM)
    code, logged = child.end()

    assert code == 0
    assert "fake.drained" in logged


def test_the_end_of_the_channel_is_the_end_of_the_child(born):
    child = born()
    child.hear()
    child.channel.close()

    assert child.end()[0] == 0


def test_a_new_configuration_reaches_the_conductor(born):
    child = born()
    child.hear()
    loud = Config(log=configuration.Log(level="error"))
    child.tell(frames.Configure(configuration.encode(Config()), "other"))
    child.tell(frames.Configure(configuration.encode(loud), "quiet"))
    child.tell(frames.Drain(1.0))
    logged = child.end()[1]

    assert "password=other" in logged
    assert "password=quiet" not in logged


def test_a_fault_of_the_conductor_is_logged_and_exit_1(born):
    child = born("fakes.child_failing")
    code, logged = child.end()

    assert code == 1
    assert "child.failed" in logged
    assert len(logged.splitlines()) == 1
    assert "ZeroDivisionError" in logged


def test_the_last_word_of_a_child_is_why_it_ends(born):
    word = born("fakes.child_failing").hear()

    assert isinstance(word, frames.Failed)
    assert word.reason.startswith("ZeroDivisionError: ")


DOOR = ("nacosdns.child",)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("fakes.child_unimported", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("fakes.no_such_child", "ImportError: No module named fakes.no_such_child"),
    ],
)
def test_a_module_that_cannot_be_imported_is_the_last_word_of_its_child(born, module, reason):
    child = born(module, door=DOOR)
    word = child.hear()
    code, logged = child.end()

    assert word == frames.Failed(reason)
    assert code == 1
    assert len(logged.splitlines()) == 1
    assert "child.failed" in logged
    assert reason in logged


def test_a_child_behind_the_door_lives_as_one_without_and_fails_once(born):
    child, failing = born(door=DOOR), born("fakes.child_failing", door=DOOR)

    assert child.hear() == frames.Ready(7)
    assert failing.hear().reason.startswith("ZeroDivisionError: ")
    assert len(failing.end()[1].splitlines()) == 1
    assert Path(f"/proc/{child.process.pid}/comm").read_text() == "nacosdns-keeper\n"


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(2, "nothing there"), "FileNotFoundError: [Errno 2] nothing there"),
        (ExceptionGroup("", [ExceptionGroup("", [ValueError("a\x1bb")])]), "ValueError: a\\x1bb"),
        (ConfigError("is empty", key="nacos.servers"), "nacos.servers: is empty"),
        (StoreError(), "StoreError: "),
        (ValueError("x" * 1000), f"ValueError: {'x' * REASON_CHARS_MAX}"),
    ],
)
def test_an_error_in_a_sentence_is_short_and_safe_to_show(error, sentence):
    assert in_a_sentence(error) == sentence


@pytest.mark.parametrize(("role", "loop"), [("front", "uvloop"), ("keeper", "asyncio")])
def test_fronts_run_on_uvloop_and_the_others_on_asyncio(born, role, loop):
    child = born(role=role)
    child.hear()
    child.tell(frames.Ask(1, "loop"))

    assert msgspec.msgpack.decode(child.hear().body)["loop"] == loop


def test_a_child_takes_over_counters_and_clears_gauges(born):
    child = born()
    child.hear()

    assert child.page.counters[metrics.PUSHES.index()] == 5
    assert child.page.counters[metrics.SUBSCRIPTIONS.index()] == 0


def test_the_setup_is_in_no_argument_and_its_descriptor_is_closed(born):
    child = born()
    child.hear()
    process = Path(f"/proc/{child.process.pid}")
    files = [link.readlink().name for link in (process / "fd").iterdir()]

    assert b"s3cret" not in (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
    assert not [file for file in files if "nacosdns-setup" in file]
