"""The settings for faults: the configuration's [faults], as the policies use it.  Prose: docs/faults.md."""

from msgspec import Struct


class FaultSettings(Struct, frozen=True):
    """ends_culprit: mpsd ends the culprit, culprit_seconds after it is known.

    quarantine: whether culprits are convicted, and they and suspects are placed apart.  quarantine_seconds: for so long after a
    first conviction, twice as long after each further one.  suspect_seconds: for so long after the last fault.  groups: the
    number of groups that the suspects of a fault are split into.  crash_*: after so many faults of a key within so many
    seconds, its clients have to wait before they start again, twice as long after each further fault up to crash_pause_max
    seconds.  drain_on_device_fault: a GPU that has to be reset takes no new client.
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
