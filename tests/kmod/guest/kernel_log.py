"""The kernel's log of this guest, and what in it no test may cause."""

import os
import re

COMPLAINT = re.compile(
    r"BUG:|WARNING:|Oops|general protection|Call Trace|possible circular locking|inconsistent lock state|suspicious RCU"
    r"|INFO: task .* blocked|scheduling while atomic|sleeping function called|refcount_t|UBSAN|KASAN|list_(add|del) corruption"
    r"|Assert failed|slab-out-of-bounds|use-after-free|Objects remaining|nvidia-uvm:.*(ERROR|leak)",
    re.IGNORECASE,
)
LINES_AROUND = 30


class KernelLog:
    """What was logged since this was made."""

    def __init__(self) -> None:
        self._file = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.lseek(self._file, 0, os.SEEK_END)
        self.lines: list[str] = []

    def read(self) -> list[str]:
        """All lines so far."""
        while True:
            try:
                record = os.read(self._file, 8192)
            except BlockingIOError:
                return self.lines
            except BrokenPipeError:
                continue  # lines were overwritten; the next read goes on with the oldest
            self.lines.append(record.partition(b";")[2].decode(errors="replace").splitlines()[0])

    def complaints(self) -> list[str]:
        lines = self.read()
        first = next((number for number, line in enumerate(lines) if COMPLAINT.search(line)), None)
        return [] if first is None else lines[first : first + LINES_AROUND]

    def close(self) -> None:
        os.close(self._file)
