"""Many services, or many instances of one, held at Nacos by the unchanged nacos-sdk-python: ``python crowd.py SERVER SCRATCH``.

Each line of its input is an order as JSON: ``{"client": NAME, "services": {SERVICE: [ADDRESS, ...], ...}}`` registers these
at port 80 in place of the former ones over the connection of that client, which is made when it is new;
``{"client": NAME}`` ends it. Prints "done" for each.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

IN_FLIGHT_MAX = 20
TRIES = 40


class Crowd:
    """The process, from outside."""

    def __init__(self, server: str, scratch: Path) -> None:
        command = [sys.executable, str(Path(__file__)), server, str(scratch)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)

    def hold(self, services: Mapping[str, Sequence[str]], client: str = "all") -> Self:
        """These services have exactly these instances of this client, as soon as it returns."""
        return self._order({"client": client, "services": services})

    def end(self, client: str) -> Self:
        """The client closes its connection, and takes its instances along."""
        return self._order({"client": client})

    def kill(self) -> None:
        """Kill -9: every connection of it breaks."""
        self._process.kill()
        self._process.communicate()

    def _order(self, order: dict[str, Any]) -> Self:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if line.strip() != "done":
            raise RuntimeError(f"the crowd says {line!r}, not done")
        return self


async def main(server: str, scratch: str) -> None:
    warnings.simplefilter("ignore")
    from v2.nacos import (  # noqa: PLC0415 - whoever only starts the process needs no SDK, and it warns when imported
        BatchRegisterInstanceParam,
        ClientConfigBuilder,
        NacosNamingService,
        RegisterInstanceParam,
    )

    builder = ClientConfigBuilder().server_address(server).namespace_id("public")
    config = builder.log_dir(scratch).cache_dir(scratch).log_level("ERROR").build()
    clients: dict[str, NacosNamingService] = {}
    limit = asyncio.Semaphore(IN_FLIGHT_MAX)

    async def register(naming: NacosNamingService, service: str, addresses: list[str]) -> None:
        params = [RegisterInstanceParam(service_name=service, ip=address, port=80) for address in addresses]
        batch = BatchRegisterInstanceParam(service_name=service, group_name="DEFAULT_GROUP", instances=params)
        async with limit:
            for _ in range(TRIES - 1):  # a member of the cluster may be away for a moment
                with contextlib.suppress(Exception):
                    await send(naming, params, batch)
                    return
                await asyncio.sleep(0.5)
            await send(naming, params, batch)

    async def send(naming: NacosNamingService, params: list[Any], batch: Any) -> None:
        if len(params) == 1:
            await naming.register_instance(params[0])
        else:
            await naming.batch_register_instances(batch)

    while line := await asyncio.to_thread(sys.stdin.readline):
        order = json.loads(line)
        name = order["client"]
        if "services" not in order:
            await clients.pop(name).shutdown()
        else:
            if name not in clients:
                clients[name] = await NacosNamingService.create_naming_service(config)
            services = order["services"].items()
            await asyncio.gather(*(register(clients[name], service, addresses) for service, addresses in services))
        print("done", flush=True)  # noqa: T201 - the test waits for it


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
