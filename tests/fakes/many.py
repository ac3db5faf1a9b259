"""A provider of many services over one connection: ``python many.py SERVER COUNT SCRATCH``; prints ready, lives until killed."""

from __future__ import annotations

import asyncio
import sys
import warnings

warnings.simplefilter("ignore")

from v2.nacos import ClientConfigBuilder, NacosNamingService, RegisterInstanceParam  # noqa: E402 - it warns when imported


async def main(server: str, count: int, scratch: str) -> None:
    builder = ClientConfigBuilder().server_address(server).namespace_id("public")
    config = builder.log_dir(scratch).cache_dir(scratch).log_level("ERROR").build()
    naming = await NacosNamingService.create_naming_service(config)
    limit = asyncio.Semaphore(20)

    async def one(number: int) -> None:
        async with limit:
            ip = f"10.1.{number // 250}.{number % 250 + 1}"
            await naming.register_instance(RegisterInstanceParam(service_name=f"many-{number}", ip=ip, port=8080))

    await asyncio.gather(*map(one, range(count)))
    print("ready", flush=True)  # noqa: T201 - the test waits for it
    await asyncio.Event().wait()


asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
