"""The drills, by what they break."""

from chaos.drills import processes, registry

ALL = [*processes.DRILLS, *registry.DRILLS]
