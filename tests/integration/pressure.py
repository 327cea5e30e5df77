"""How busy the machine has been since a moment: what a test may expect of a program's times."""

import os
import time
from pathlib import Path

BUSY_SHARE = 0.25  # of the time in which some process had work and waited for a processor or for a disk


class Pressure:
    """Counts from the moment at which it is made.  Source: Linux, Documentation/accounting/psi.rst, "some", total in us."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._waited = _waited_us()

    def is_busy(self) -> bool:
        """Return whether processes have waited; where the kernel does not tell, whether the load of the last minute was high.

        The load alone is not enough: it is an average of a minute, and a test that began with others has its worst seconds
        while that average is still low.
        """
        if os.getloadavg()[0] > (os.cpu_count() or 1):
            return True
        elapsed_us = (time.monotonic() - self._began) * 1e6
        return any(after - before > BUSY_SHARE * elapsed_us for before, after in zip(self._waited, _waited_us(), strict=True))


def _waited_us() -> tuple[int, ...]:
    try:
        return tuple(_some_us(Path("/proc/pressure", resource)) for resource in ("cpu", "io"))
    except OSError:  # the kernel has no PSI, or it is off
        return ()


def _some_us(file: Path) -> int:
    some = file.read_text().splitlines()[0]
    return int(some.rpartition("total=")[2])
