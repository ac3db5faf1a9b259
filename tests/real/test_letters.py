"""Spellings of one name, and a service without enabled instances, as a real Nacos tells of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fakes.asking import addresses, cli, rcode, until_says
from fakes.running import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from fakes.real_nacos import Provider, RealNacos
    from fakes.running import Bridge

    StartBridge = Callable[..., Bridge]
    StartProvider = Callable[..., Provider]

BARE = '[[zone]]\nname = "nacos."\nbare_names = true\n'


def test_the_spelling_that_is_asked_for_wins_whatever_was_asked_before(
    nacos: RealNacos, provider: StartProvider, bridge: StartBridge
) -> None:
    provider("letters", {"ip": "10.79.0.2", "port": 80})
    provider("hidden", {"ip": "10.79.0.3", "port": 80, "enabled": False})
    running = bridge(nacos, text=BARE)
    until_says(running.port, "letters.nacos", {"10.79.0.2"}, seconds=20)
    provider("Letters", {"ip": "10.79.0.1", "port": 80})

    assert addresses(running.port, "Letters.nacos") == ["10.79.0.2"]
    until(lambda: addresses(running.port, "Letters.nacos") == ["10.79.0.1"], 100, "the next read of the catalogue")
    assert addresses(running.port, "letters.nacos") == ["10.79.0.2"]
    assert addresses(running.port, "LETTERS") == ["10.79.0.1"]
    assert "taken is Letters, not letters" in str(cli(running, "ask", "LETTERS.nacos")["why"])

    (clash,) = [one for one in cli(running, "doctor")["findings"] if one["id"] == "services.clashing"]
    assert "Letters and letters (public/DEFAULT_GROUP)" in clash["seen"]
    assert "hidden" not in {row["service"] for row in cli(running, "services")}
    assert "hidden" in {row["service"] for row in cli(running, "services", "--all")}

    assert rcode(running.port, "hidden.nacos") == "NXDOMAIN"
    assert "none is enabled" in str(cli(running, "ask", "hidden.nacos")["why"])
    assert cli(running, "cache", "flush", "letters")["keeper"]["services"]
