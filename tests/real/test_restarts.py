"""Nacos dies and comes back, or is not there yet: no answer is wrong, empty or lost."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fakes.asking import addresses, rcode, until_says
from fakes.checker import check
from fakes.real_nacos import Provider
from fakes.running import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from fakes.checker import Report
    from fakes.real_nacos import RealNacos
    from fakes.running import Bridge

    StartBridge = Callable[..., Bridge]
    StartProvider = Callable[..., Provider]

pytestmark = pytest.mark.timeout(300)

TESTS = Path(__file__).parents[1]


def test_a_nacos_killed_and_restarted_under_load_changes_no_answer(
    start_nacos: Callable[..., RealNacos], tmp_path: Path, bridge: StartBridge
) -> None:
    """S30, S36: 500 q/s for 60 s: Nacos comes back knowing nobody, pushes an empty list, then the providers return."""
    nacos = start_nacos()
    holder = Provider(nacos, tmp_path, "orders")
    try:
        holder.start(*({"ip": f"10.0.0.{n}", "port": 80} for n in (1, 2, 3)))
        port = bridge(nacos).port
        truth = {"10.0.0.1", "10.0.0.2", "10.0.0.3"}
        until_says(port, "orders.nacos", truth)

        async def drill() -> Report:
            task = asyncio.create_task(check(port, ["orders.nacos"], truth, rate=500, seconds=60, at_least=3))
            await asyncio.sleep(2)
            nacos.kill()
            await asyncio.sleep(3)
            await asyncio.to_thread(nacos.start)
            return await task

        report = asyncio.run(drill())
    finally:
        holder.kill()

    assert (report.wrong, report.empty, report.failed, report.few, report.lost) == (0, 0, 0, 0, 0), report.samples
    assert report.right == report.sent > 29_000


def test_twenty_providers_that_return_over_half_a_minute_are_never_fewer_than_eighteen(
    start_nacos: Callable[..., RealNacos], tmp_path: Path, bridge: StartBridge
) -> None:
    nacos = start_nacos()
    truth = {f"10.0.0.{n}" for n in range(1, 21)}
    script = tmp_path / "twenty.py"
    script.write_text(TWENTY)
    holder = subprocess.Popen(
        [sys.executable, str(script), nacos.address, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        port = bridge(nacos).port
        until_says(port, "spread.nacos", truth)

        async def drill() -> Report:
            task = asyncio.create_task(check(port, ["spread.nacos"], truth, rate=200, seconds=85, at_least=18))
            await asyncio.sleep(2)
            nacos.kill()
            await asyncio.sleep(2)
            await asyncio.to_thread(nacos.start)
            return await task

        report = asyncio.run(drill())
    finally:
        holder.kill()
        holder.communicate()

    assert (report.wrong, report.empty, report.failed, report.few, report.lost) == (0, 0, 0, 0, 0), report.samples
    assert report.fewest >= 18


TWENTY = """
import asyncio, sys, warnings
warnings.simplefilter("ignore")
from v2.nacos import ClientConfigBuilder, NacosNamingService, RegisterInstanceParam

async def one(number):
    await asyncio.sleep(number * 1.5)
    config = ClientConfigBuilder().server_address(sys.argv[1]).namespace_id("public").log_dir(sys.argv[2]).cache_dir(sys.argv[2]).log_level("ERROR").build()
    naming = await NacosNamingService.create_naming_service(config)
    await naming.register_instance(RegisterInstanceParam(service_name="spread", ip=f"10.0.0.{number + 1}", port=80))
    return naming

async def main():
    kept = await asyncio.gather(*map(one, range(20)))
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_started_with_nacos_down_the_disk_answers(
    start_nacos: Callable[..., RealNacos], tmp_path: Path, bridge: StartBridge
) -> None:
    """S39."""
    nacos = start_nacos()
    holder = Provider(nacos, tmp_path, "kept").start({"ip": "10.0.0.1", "port": 80})
    first = bridge(nacos)
    until_says(first.port, "kept.nacos", {"10.0.0.1"})
    first.signal(signal.SIGTERM)

    assert first.wait() == 0

    holder.kill()
    nacos.kill()
    second = bridge(nacos, directory=first.directory)

    assert addresses(second.port, "kept.nacos") == ["10.0.0.1"]
    assert rcode(second.port, "unknown.nacos") == "SERVFAIL"


def test_started_before_nacos_it_finds_services_when_nacos_comes(
    start_nacos: Callable[..., RealNacos], tmp_path: Path, bridge: StartBridge
) -> None:
    """S36."""
    nacos = start_nacos()
    nacos.kill()
    port = bridge(nacos).port
    until(lambda: rcode(port, "late.nacos") == "SERVFAIL", 10, "SERVFAIL")
    nacos.start()
    holder = Provider(nacos, tmp_path, "late").start({"ip": "10.0.0.1", "port": 80})
    try:
        until_says(port, "late.nacos", {"10.0.0.1"}, seconds=20)
    finally:
        holder.kill()
