"""The real supervisor over fake children: ``python -m fakes.bridge CONFIG ROLE=MODULE…``.

A file CONFIG.modules with such entries, read at each start, wins: what a new release brings.
"""

import os
import sys
from pathlib import Path

from nacosdns import self_check, supervisor, upgrading
from nacosdns.config_load import Source
from nacosdns.errors import NacosdnsError


def main(path: str, *entries: str) -> int:
    source = Source(None, os.environ, usual=path)
    released = Path(f"{path}.modules")
    modules = dict(entry.split("=") for entry in entries)
    modules |= dict(entry.split("=") for entry in released.read_text().split()) if released.exists() else {}
    errand = upgrading.errand(os.environ)
    try:
        if errand and errand.result_fd >= 0:
            return self_check.main(errand, source, modules)
        return supervisor.main(source, modules, state_fd=errand.state_fd if errand else -1)
    except NacosdnsError as error:
        sys.stderr.write(f"{error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
