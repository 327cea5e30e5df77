"""What programs find mpsd by, made anew where somebody has removed it, as whatever tidies /tmp.  A program that finds no door
runs without MPS, without limits, and says nothing."""

from collections.abc import Callable, Mapping
from pathlib import Path

import structlog
import trio

from mpsd.errors import UnusablePath

log = structlog.get_logger()
SECONDS = 1.0


class Presence:
    """Guards that each of `places` is there, until it is cancelled or `is_over`.

    restore: the directory that they are in, and its pid file; raises UnusablePath.  places: what makes each of them anew, if
    there is something to make, and raises likewise.
    """

    def __init__(
        self, restore: Callable[[], None], places: Mapping[Path, Callable[[], None]], is_over: Callable[[], bool]
    ) -> None:
        self._restore = restore
        self._places = places
        self._is_over = is_over
        self._said = ""

    async def run(self) -> None:
        while True:
            await trio.sleep(SECONDS)
            if self._is_over():
                return
            self.look()

    def look(self) -> None:
        gone = [path for path in self._places if not _is_there(path)]
        if not gone:
            return
        try:
            self._restore()
            for path in gone:
                self._places[path]()
        except UnusablePath as exc:
            self._tell(str(exc), gone)
            return
        self._said = ""
        if back := [str(path) for path in gone if _is_there(path)]:
            log.error("pipe_directory.restored", found_missing=back, effect="programs that started meanwhile run without MPS")

    def _tell(self, why: str, gone: list[Path]) -> None:
        """Once, as long as it is so."""
        if why != self._said:
            self._said = why
            names = [str(path) for path in gone]
            log.error("pipe_directory.missing", missing=names, why=why, effect="programs that start run without MPS")


def _is_there(path: Path) -> bool:
    return path.is_symlink() or path.exists()
