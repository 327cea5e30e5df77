"""What programs find mpsd by, made anew where somebody has removed or replaced it, as whatever tidies /tmp.  A program that
finds no door runs without MPS, without limits, and says nothing."""

from collections.abc import Callable, Mapping, Sequence

import structlog
import trio

from mpsd.errors import UnusablePath
from mpsd.runtime.pipe_directory import PipeDirectory

log = structlog.get_logger()
SECONDS = 1.0


class Presence:
    """Guards that each of `places` is there, in a directory that its path leads to, until it is cancelled or `is_over`.

    restore: opens the directory anew and makes its pid file; raises UnusablePath.  places: by name, what makes each of them
    anew, if there is something to make, and raises likewise.
    """

    def __init__(
        self,
        directory: PipeDirectory,
        restore: Callable[[], None],
        places: Mapping[str, Callable[[], None]],
        is_over: Callable[[], bool],
    ) -> None:
        self._directory = directory
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
        self._directory.missing = self._restore_missing()

    def _restore_missing(self) -> Sequence[str]:
        """What could not be made anew."""
        is_current = self._directory.is_current()
        gone = [name for name in self._places if not (is_current and self._directory.has(name))]
        if not gone:
            return ()
        try:
            self._restore()
            gone = [name for name in self._places if not self._directory.has(name)]  # all may be there: only modes had changed
            for name in gone:
                self._places[name]()
        except UnusablePath as exc:
            self._tell(str(exc), gone)
            return [self._path(name) for name in gone]
        self._said = ""
        if back := [self._path(name) for name in gone if self._directory.has(name)]:
            log.error("pipe_directory.restored", found_missing=back, effect="programs that started meanwhile run without MPS")
        return [self._path(name) for name in gone if not self._directory.has(name)]

    def _path(self, name: str) -> str:
        return str(self._directory.path / name)

    def _tell(self, why: str, gone: list[str]) -> None:
        """Once, as long as it is so."""
        if why != self._said:
            self._said = why
            names = [self._path(name) for name in gone]
            log.error("pipe_directory.missing", missing=names, why=why, effect="programs that start run without MPS")
