"""How much of long work is done, on standard error each second: a line of JSON with --json, else a text on a terminal."""

import json
import sys
import time

EACH_SECONDS = 1.0


def size_text(size: int) -> str:
    for unit, step in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if size >= step:
            return f"{size / step:.4g} {unit}"
    return f"{size} bytes"


class ProgressLine:
    """Counts what is done.  total: bytes."""

    def __init__(self, what: str, total: int, *, is_json: bool) -> None:
        self._what, self._total, self._is_json = what, total, is_json
        self._next = time.monotonic() + EACH_SECONDS
        self._was_shown = False
        self.done = 0

    def add(self, size: int, total: int | None = None) -> None:
        """Count so many more bytes; total: of all, if it is only known now."""
        self.done += size
        self._total = self._total if total is None else total
        if time.monotonic() < self._next or not (self._is_json or sys.stderr.isatty()):
            return
        if self._is_json:
            print(json.dumps({"done_bytes": self.done, "total_bytes": self._total}), file=sys.stderr, flush=True)
        else:
            text = f"\r{self._what} {size_text(self.done)} of {size_text(self._total)} "
            print(text, end="", file=sys.stderr, flush=True)
            self._was_shown = True
        self._next = time.monotonic() + EACH_SECONDS

    def end(self) -> None:
        if self._was_shown:
            print(file=sys.stderr)
