"""How faults are answered: the configuration's [faults], as the policies use it.  Prose: docs/faults.md."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class FaultSettings:
    """culprit: what becomes of the process that did it: nothing, its GPU work is ended, or the process is.

    quarantine: whether culprits and suspects are placed apart.  quarantine_seconds: for so long after a first conviction, twice
    as long after each further one.  suspect_seconds: for so long after the last fault.  groups: into how many the suspects of a
    fault are split.  crash_*: so many proven faults of a key within so many seconds, and it has to wait before it starts
    again, twice as long after each further fault up to crash_pause_max seconds.  recycle_seconds: after so long in FAULT a
    domain is renewed although clients linger in it; 0: never.  drain_on_device_fault: a GPU that has to be reset takes nobody.
    """

    culprit: Literal["off", "terminate", "end"] = "terminate"
    quarantine: bool = True
    quarantine_seconds: float = 3600.0
    suspect_seconds: float = 1800.0
    groups: int = 2
    crash_faults: int = 3
    crash_seconds: float = 600.0
    crash_pause_max: float = 300.0
    recycle_seconds: float = 30.0
    drain_on_device_fault: bool = True
