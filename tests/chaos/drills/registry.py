"""Nacos, its providers, and the way to it are killed, stopped, wiped."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from chaos.ground import collect
from fakes.asking import until_says

if TYPE_CHECKING:
    from chaos.ground import Drill, Ground

DRILLS: list[Drill] = []
NACOS = ("java", "mvn", "curl")


@collect(DRILLS, needs=NACOS)
def nacos_killed(ground: Ground) -> None:
    """Nacos dies, comes back knowing nobody and pushes an empty list: no answer changes."""
    nacos = ground.nacos()
    ground.provider(nacos, "orders", "10.0.0.1", "10.0.0.2", "10.0.0.3")
    running = ground.bridge(f'[nacos]\nservers = ["{nacos.address}"]\n')
    until_says(running.port, "orders.nacos", {"10.0.0.1", "10.0.0.2", "10.0.0.3"})
    load = ground.load(running.port).expect("orders.nacos", "10.0.0.1", "10.0.0.2", "10.0.0.3")
    with ground.under_load(load):
        nacos.kill()
        time.sleep(ground.span(10, 1))
        nacos.start()
        time.sleep(ground.span(60, 40))
