"""Restore the names by which programs find mpsd, after another process, such as a cleaner of /tmp, removed or replaced them.

A program that finds no door silently runs without MPS and without limits.
"""

from collections.abc import Callable, Mapping, Sequence

import structlog
import trio

from mpsd.errors import UnusablePath
from mpsd.host.pipe_directory import PipeDirectory
from mpsd.log.once import Once

log = structlog.get_logger()
SECONDS = 1.0


class PublicPaths:
    """Guards that each of `places` exists, in a directory that its path leads to, until cancelled or `is_over`.

    restore: opens the directory again and writes its pid file; raises UnusablePath.  places: by name, the function that creates
    each again, if it has anything to create; raises likewise.
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
        self._logged = Once()

    async def run(self) -> None:
        while True:
            await trio.sleep(SECONDS)
            if self._is_over():
                return
            self.look()

    def look(self) -> None:
        self._directory.missing = self._restore_missing()

    def _restore_missing(self) -> Sequence[str]:
        """Restore the missing names; return those that could not be."""
        is_current = self._directory.is_current()
        gone = [name for name in self._places if not (is_current and self._directory.has(name))]
        if not gone:
            return ()
        try:
            self._restore()
            gone = [name for name in self._places if not self._directory.has(name)]  # all may exist: only modes had changed
            for name in gone:
                self._places[name]()
        except UnusablePath as exc:
            self._tell(str(exc), gone)
            return [self._path(name) for name in gone]
        self._logged.clear()
        if back := [self._path(name) for name in gone if self._directory.has(name)]:
            log.error("pipe_directory.restored", found_missing=back, effect="programs that started in between run without MPS")
        return [self._path(name) for name in gone if not self._directory.has(name)]

    def _path(self, name: str) -> str:
        return str(self._directory.path / name)

    def _tell(self, why: str, gone: list[str]) -> None:
        if self._logged.is_new(why):
            names = [self._path(name) for name in gone]
            log.error("pipe_directory.missing", missing=names, why=why, effect="programs that start run without MPS")
