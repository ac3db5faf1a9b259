"""What comes from outside, as a terminal may show it."""

from __future__ import annotations

import pytest

from nacosdns import commands
from nacosdns.core.printable import printable
from nacosdns.errors import ControlError

HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\nOK  all is well\x9b1m\u202etxt\x00"


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("orders.nacos.", "orders.nacos."),
        ("Zürich 服务", "Zürich 服务"),
        ("a\x1b[31mb", "a\\x1b[31mb"),
        ("one\ntwo\ttab", "one\\ntwo\\ttab"),
        ("\x9b31m", "\\x9b31m"),
        ("\u202eabc", "\\u202eabc"),
        ("\udc1b", "\\udc1b"),
    ],
)
def test_what_cannot_be_printed_is_spelled_out_and_all_else_stays(raw: str, shown: str) -> None:
    assert printable(raw) == shown


def test_every_text_of_an_answer_is_spelled_out_keys_too() -> None:
    answer = {HOSTILE: [HOSTILE, {"a": (HOSTILE, 1, None, True, 0.5)}]}
    shown = printable(answer)

    assert str(shown).isprintable()
    assert shown == {printable(HOSTILE): [printable(HOSTILE), {"a": [printable(HOSTILE), 1, None, True, 0.5]}]}


def test_an_error_is_one_line_whatever_is_in_it(capsys) -> None:
    commands.complain(ControlError(f"the keeper says {HOSTILE}"), as_json=False)
    lines = capsys.readouterr().err.splitlines()

    assert len(lines) == 1
    assert lines[0].isprintable()
