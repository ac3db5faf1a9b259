"""Services that are host names whose own answer is negative: what is behind the alias decides (RFC 2308 2.1, RFC 6604)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dnslib
import pytest

from replay.test_crowds import play

if TYPE_CHECKING:
    from pathlib import Path

    from replay.engine import Scenario


def ask(directory: Path, host: str, kind: str) -> Scenario:
    """A question for a service that is only this host name."""
    script = [
        f"nacos has db: {host}:3306",
        "upstream 192.0.2.53:53 answers there.ext.test A: 192.0.2.9",
        f"ask db.nacos {kind}",
        "5s want whatever",
    ]
    return play(directory, script)


@pytest.mark.parametrize(("host", "kind"), [("there.ext.test", "AAAA"), ("missing.ext.test", "A")])
def test_a_negative_answer_behind_an_alias_has_its_soa(tmp_path: Path, host: str, kind: str) -> None:
    """S18, S23: without one it cannot be kept, and every AAAA is asked again."""
    reply = ask(tmp_path, host, kind).reply
    assert reply is not None

    assert [str(rr.rdata) for rr in reply.rr] == [f"{host}."]
    assert [rr.rtype for rr in reply.auth] == [dnslib.QTYPE.SOA]


def test_an_alias_to_a_name_that_does_not_exist_answers_both_families_alike(tmp_path: Path) -> None:
    """S15, S18: no stub gives up on one family for the other's sake."""
    replies = [ask(tmp_path, "missing.ext.test", kind).reply for kind in ("A", "AAAA")]
    v4, v6 = (reply for reply in replies if reply is not None)

    assert v4.header.rcode == v6.header.rcode
    assert [str(rr.rdata) for rr in v4.rr + v6.rr] == ["missing.ext.test."] * 2
