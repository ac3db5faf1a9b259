"""Log lines as a program reads them: one event a line, whatever is in it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest

from nacosdns.edge import logs


@pytest.fixture(autouse=True)
def _logging_as_before():
    root, ours = logging.getLogger(), logging.getLogger(logs.OURS)
    handlers, levels, raises = root.handlers[:], (root.level, ours.level), logging.raiseExceptions
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])
    logging.raiseExceptions = raises


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.partition(" ")[2] for line in capsys.readouterr().err.splitlines()]


def test_an_event_is_one_line_of_its_facts_and_who_says_it(capsys):
    logs.configure("info", role="front", slot=3)
    logs.log().info("child.ready", services=2, good=True, nothing=None, names=["a", "b"], why='x="y"')

    (line,) = lines(capsys)

    assert line.startswith("level=info event=child.ready services=2 good=true nothing= ")
    assert line.endswith(""" names="['a', 'b']" why="x=\\"y\\"" role=front slot=3""")


@pytest.mark.parametrize(("level", "begin"), [("info", "<6>"), ("warning", "<4>"), ("error", "<3>")])
@pytest.mark.parametrize("ours", [True, False])
def test_a_line_for_the_journal_begins_with_its_priority(tmp_path, level, begin, ours):
    file = tmp_path / "log"
    said = f'from nacosdns.edge import logs; logs.configure("info"); logs.log().{level}("event")'
    with file.open("wb") as stream:
        found = os.fstat(stream.fileno())
        stream_id = f"{found.st_dev}:{found.st_ino}" if ours else "1:1"
        environment = os.environ | {"JOURNAL_STREAM": stream_id}
        subprocess.run([sys.executable, "-c", said], stderr=stream, env=environment, check=True)

    assert file.read_text().startswith(f"{begin}timestamp=" if ours else "timestamp=")


def test_what_is_below_the_level_is_not_said(capsys):
    logs.configure("warning")
    logs.log().info("quiet")
    logs.log().warning("loud")

    assert lines(capsys) == ["level=warning event=loud"]


def test_a_traceback_and_a_forged_line_stay_on_their_line(capsys):
    logs.configure("info")
    try:
        int("two\nlines")
    except ValueError:
        logs.log().exception("failed", name="a\nlevel=error event=forged")
    (line,) = lines(capsys)

    assert "Traceback" in line
    assert "two\\\\nlines" in line
    assert "a\\nlevel=error event=forged" in line


def test_an_exception_among_the_facts_is_shown_too(capsys):
    logs.configure("info")
    logs.log().warning("surprise", exc_info=ValueError("odd"))

    assert "exception=" in lines(capsys)[0]


def test_libraries_are_heard_from_warning_on_in_the_same_form(capsys):
    logs.configure("debug", role="keeper")
    logging.getLogger("library").info("chatter")
    logging.getLogger("library").warning("%s is odd", "it")

    assert lines(capsys) == ['level=warning event="it is odd" role=keeper']


def test_an_event_that_comes_too_often_is_counted_instead_of_said(capsys, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(logs.time, "monotonic", lambda: now[0])
    logs.configure("info")
    for number in range(5000):
        logs.log().warning("noisy", number=number)
        logging.getLogger("library").warning("also %s", number)
        logs.log().info("query", number=number)
    logs.log().info("rare")
    now[0] += logs.LINES_WITHIN_S
    logs.log().warning("noisy", number=1)
    logs.log().warning("noisy", number=2)
    said = lines(capsys)

    assert sum("event=noisy" in line for line in said) == logs.LINES_MAX + 2
    assert sum("also" in line for line in said) == logs.LINES_MAX
    assert sum("event=query" in line for line in said) == 5000
    assert said[-3:] == [
        "level=info event=rare",
        "level=warning event=noisy number=1 unsaid=4900",
        "level=warning event=noisy number=2",
    ]


def test_nothing_that_is_said_steers_a_terminal(capsys):
    logs.configure("info")
    logs.log().warning("registry.down", reason="\x1b[31mEVIL\x1b[0m\x07\r\u202egnp")
    (line,) = lines(capsys)

    assert line.isprintable()
    assert r"\x1b[31mEVIL" in line
