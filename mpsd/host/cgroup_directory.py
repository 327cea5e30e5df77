"""One cgroup of version 2: its processes, and its freezer.

Its user can make whoever opens a file there wait, and no signal ends that wait: children of the inspector open them.
"""

import os
from pathlib import Path

from msgspec import Struct

from mpsd.host import inspector_messages as wire
from mpsd.host.inspector import Inspector
from mpsd.host.inspector_messages import FreezerLook, InspectorOp


class CgroupDirectory(Struct, frozen=True):
    """share: of the user against whom the children count.  All methods raise OSError, and Unreadable after a second or two."""

    path: Path
    share: int
    inspector: Inspector

    async def look(self) -> FreezerLook:
        return wire.parse_freezer(await self._ask(InspectorOp.FREEZER))

    async def freeze(self, inode: int) -> None:
        """Ask the kernel to freeze the cgroup if it has this inode; a caller that no longer waits leaves it as it was."""
        await self._ask(InspectorOp.FREEZE, str(inode))

    async def thaw(self, inode: int) -> bool:
        """Thaw the cgroup if it has this inode; return whether it was frozen."""
        return await self._ask(InspectorOp.THAW, str(inode)) != b"\0"

    async def processes(self) -> set[int]:
        """Return the pids of its processes and of those below it; OSError also for more than mpsd looks at (E2BIG)."""
        return set(wire.parse_numbers(await self._ask(InspectorOp.PROCESSES)))

    async def _ask(self, op: InspectorOp, *words: str) -> bytes:
        return await self.inspector.ask_of(self.share, op, os.fspath(self.path), *words)
