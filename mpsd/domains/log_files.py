"""Following the two log files of one domain: whole lines, once each, in the order they were written."""

import os
from collections.abc import Iterator
from pathlib import Path

_READ_BYTES = 1 << 20
_MAX_LINE_BYTES = 64 * 1024  # longer than any the vendor writes; a longer one is cut, so that it cannot fill memory


class LogFile:
    """Guards a position in a growing file, and the unfinished line at its end."""

    def __init__(self, path: Path, position: int) -> None:
        self._path = path
        self._file: int | None = None
        self._start = position
        self._rest = b""

    @property
    def position(self) -> int:
        """Bytes of whole lines read so far."""
        at = os.lseek(self._file, 0, os.SEEK_CUR) if self._file is not None else self._start
        return at - len(self._rest)

    def read_lines(self) -> Iterator[str]:
        """What came since the last call.  An absent file has no lines yet; a shortened one is read from its start."""
        while data := self._read():
            *lines, self._rest = (self._rest + data).split(b"\n")
            if len(self._rest) > _MAX_LINE_BYTES:
                lines, self._rest = [*lines, self._rest[:_MAX_LINE_BYTES]], b""
            for line in lines:
                yield line.decode(errors="replace")

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _read(self) -> bytes:
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
        return os.read(self._file, _READ_BYTES)
