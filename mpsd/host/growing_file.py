"""Follow the two log files of one domain: whole lines, once each, in the order in which they were written."""

import os
from pathlib import Path

READ_LINES = 256  # in one turn of the event loop: 5 ms
_READ_BYTES = 64 << 10
_SKIP_BYTES = 1 << 20  # in one turn: 1 ms
_MAX_LINE_BYTES = 64 * 1024  # longer than any the vendor writes; a longer one is cut, so that it cannot fill memory


class GrowingFile:
    """Guards a position in a growing file, and what was read of it and not returned yet."""

    def __init__(self, path: Path, position: int) -> None:
        self._path = path
        self._file: int | None = None
        self._start = position
        self._rest = b""

    @property
    def position(self) -> int:
        """Bytes of the lines returned or skipped so far."""
        at = os.lseek(self._file, 0, os.SEEK_CUR) if self._file is not None else self._start
        return at - len(self._rest)

    def read_lines(self) -> list[str]:
        """Return what came since the last call, at most READ_LINES lines; an empty list until another line is complete.

        An absent file has no lines yet; a shortened one is read from its start.
        """
        while b"\n" not in self._rest:
            if len(self._rest) > _MAX_LINE_BYTES:
                cut, self._rest = self._rest[:_MAX_LINE_BYTES], b""
                return [cut.decode(errors="replace")]
            if not (data := self._read(_READ_BYTES)):
                return []
            self._rest += data
        *lines, self._rest = self._rest.split(b"\n", READ_LINES)
        return [line.decode(errors="replace") for line in lines]

    def skip_lines(self) -> int:
        """Pass over what came since, up to _SKIP_BYTES; return how many lines that were."""
        data = self._rest + self._read(_SKIP_BYTES)
        self._rest = data[data.rfind(b"\n") + 1 :]
        if len(self._rest) > _MAX_LINE_BYTES:
            self._rest = b""
        return data.count(b"\n")

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _read(self, most: int) -> bytes:
        if self._file is None:
            try:
                self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                self._start = 0
                return b""
            os.lseek(self._file, self._start, os.SEEK_SET)
        if os.fstat(self._file).st_size < os.lseek(self._file, 0, os.SEEK_CUR):
            os.lseek(self._file, 0, os.SEEK_SET)
            self._rest = b""
        return os.read(self._file, most)
