"""The drills, by what they break."""

from chaos.drills import disk, fleet, limits, network, processes, registry, renewal

ALL = [
    *processes.DRILLS,
    *renewal.DRILLS,
    *limits.DRILLS,
    *disk.DRILLS,
    *registry.DRILLS,
    *network.DRILLS,
    *fleet.DRILLS,
]
