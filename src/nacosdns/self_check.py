"""The self-check of new code before an upgrade: run in a process of its own, by the code that it would replace.

Must not know: how the upgrade goes on. Rules: exit status 0 and a ``Checked`` in the descriptor for it, or one line on
stderr that says why not; nothing is changed on the host; other people's code runs as the user of the children.
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from nacosdns import config as configuration
from nacosdns import upgrading
from nacosdns.config_load import check_certificates, read_password
from nacosdns.core import handover
from nacosdns.edge import host, rights, sockets, standing, store
from nacosdns.errors import NacosdnsError, StoreDamaged
from nacosdns.plugins import needed_balancers
from nacosdns.premises import check_unmoved
from nacosdns.surroundings import check_web

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nacosdns.config import Config
    from nacosdns.config_load import Source
    from nacosdns.core.handover import Handover


def main(task: upgrading.Errand, source: Source, modules: Mapping[str, str]) -> int:
    """Checks everything that could stop this code from going on in the place of the running one; the exit status."""
    standing.die_with_the_parent()
    try:
        state = upgrading.read(task.state_fd)
        source.file = state.config_file or source.file
        config = source.read()
        password = read_password(config)
        check_host(state, config)
        rights.become(rights.find_user(config.server.user))
        check_certificates(config)
        for module in modules.values():
            importlib.import_module(module)
        needed_balancers({section.balancer for section in (config.policy, *config.policies.values())})
        check_store(config)
    except (NacosdnsError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    checked = handover.Checked(
        release=_release(),
        config=configuration.encode(config),
        password=password,
        front=modules["front"],
        takes_web=True,
    )
    os.pwrite(task.result_fd, handover.encode(checked), 0)
    return 0


def check_host(state: Handover, config: Config) -> None:
    """What of this configuration would need a restart, or cannot be had on this host. StartError says it."""
    check_unmoved(config, state.cache_dir, state.control_group)
    rights.group_id(config.server.control_group)
    if config.web.listen != state.web_listen:
        check_web(config)
    sockets.check_wanted(config.server.listen, config.server.fronts, host.addresses(), state.sockets)


def check_store(config: Config) -> None:
    """A newer schema on disk would be left alone by this code. StoreError says so; a damaged file is the keeper's."""
    try:
        with store.reading(config.cache.dir):
            pass
    except StoreDamaged:
        return


def _release() -> str:
    try:
        return version("nacosdns")
    except PackageNotFoundError:
        return "unknown"
