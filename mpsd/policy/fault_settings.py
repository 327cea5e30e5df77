"""How faults are answered: the configuration's [faults], as the policies use it.  Prose: docs/faults.md."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FaultSettings:
    """ends_culprit: the process that did it is ended, culprit_seconds after it is known.

    quarantine: whether culprits are convicted, and they and suspects are placed apart.  quarantine_seconds: for so long after a
    first conviction, twice as long after each further one.  suspect_seconds: for so long after the last fault.  groups: into
    how many the suspects of a fault are split.  crash_*: so many faults of a key within so many seconds, and it has to wait
    before it starts again, twice as long after each further fault up to crash_pause_max seconds.  drain_on_device_fault: a GPU
    that has to be reset takes nobody.
    """

    ends_culprit: bool = True
    culprit_seconds: float = 5.0
    quarantine: bool = True
    quarantine_seconds: float = 3600.0
    suspect_seconds: float = 1800.0
    groups: int = 2
    crash_faults: int = 3
    crash_seconds: float = 600.0
    crash_pause_max: float = 300.0
    drain_on_device_fault: bool = True
