"""The drills, by what they break."""

from chaos.drills import disk, limits, processes, registry

ALL = [*processes.DRILLS, *limits.DRILLS, *disk.DRILLS, *registry.DRILLS]
