"""The real supervisor over fake children: ``python -m fakes.bridge CONFIG ROLE=MODULE…``."""

import asyncio
import os
import sys

from nacosdns.config_load import load, read_password
from nacosdns.edge import logs
from nacosdns.errors import NacosdnsError
from nacosdns.supervisor import Supervisor


def main(path: str, *modules: str) -> int:
    def read():
        config = load(path, os.environ)
        return config, read_password(config)

    try:
        logs.configure("info", role="supervisor")
        supervisor = Supervisor(*read(), read, dict(entry.split("=") for entry in modules))
        return asyncio.run(supervisor.run())
    except NacosdnsError as error:
        sys.stderr.write(f"{error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
