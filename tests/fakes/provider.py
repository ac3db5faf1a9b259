"""A provider of a service as a program of its own, by the unchanged nacos-sdk-python: what real services do.

``python provider.py '{"server": …, "service": …, "group": …, "namespace": …, "scratch": …, "instances": [{"ip", "port", …}]}'``
registers, prints "ready", and registers anew (printing "done") for each line of stdin, a JSON list of instances.
"""

from __future__ import annotations

import asyncio
import json
import sys
import warnings
from typing import Any

warnings.simplefilter("ignore")

from v2.nacos import (  # noqa: E402 - it warns while it is imported
    BatchRegisterInstanceParam,
    ClientConfigBuilder,
    NacosNamingService,
    RegisterInstanceParam,
)


async def register(naming: NacosNamingService, order: dict[str, Any], instances: list[dict[str, Any]]) -> None:
    named = {"service_name": order["service"], "group_name": order["group"]}
    params = [RegisterInstanceParam(**named, **instance) for instance in instances]
    if len(params) == 1:
        await naming.register_instance(params[0])
    else:
        await naming.batch_register_instances(BatchRegisterInstanceParam(**named, instances=params))


async def main() -> None:
    order = json.loads(sys.argv[1])
    builder = ClientConfigBuilder().server_address(order["server"]).namespace_id(order["namespace"])
    config = builder.log_dir(order["scratch"]).cache_dir(order["scratch"]).log_level("ERROR").build()
    naming = await NacosNamingService.create_naming_service(config)
    await register(naming, order, order["instances"])
    print("ready", flush=True)  # noqa: T201 - the test waits for it
    while line := await asyncio.to_thread(sys.stdin.readline):
        await register(naming, order, json.loads(line))
        print("done", flush=True)  # noqa: T201 - the test waits for it
    await naming.shutdown()


asyncio.run(main())
