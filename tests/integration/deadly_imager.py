"""An imager during whose completion of an image a process is killed: itself, or others.

    DEADLY_CALL      the call at which: its number among those that complete the image, or its name (the first one so called);
                     or add.N, read.N, make.N: when a block is stored, or read, or memory is wanted, for the N-th time
    DEADLY_VICTIMS   pids; `imager`: this process, `client`: the one that has started it
    DEADLY_ONCE      a file that is made then, and spares all later imagers
"""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

from mpsd.images.imager.__main__ import run
from mpsd.images.imager.restoring import Restorer
from mpsd.images.reader import ImageReader
from mpsd.images.writer import ImageWriter
from tests.unit.images.test_crashes import CALLS


def kill() -> None:
    if once := os.environ.get("DEADLY_ONCE"):
        try:
            os.close(os.open(once, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
    known = {"imager": os.getpid(), "client": os.getppid()}
    for word in os.environ["DEADLY_VICTIMS"].split(","):
        with suppress(ProcessLookupError):
            os.kill(known.get(word) or int(word), signal.SIGKILL)


def deadly(call: Callable[..., Any], name: str, calls: list[str]) -> Callable[..., Any]:
    def version(*arguments: Any, **named: Any) -> Any:
        calls.append(name)
        chosen = os.environ["DEADLY_CALL"]
        if chosen == str(len(calls)) or (chosen == name and calls.count(name) == 1):
            if name == "write":  # half of it is written
                call(arguments[0], arguments[1][: len(arguments[1]) // 2])
                kill()
                return call(arguments[0], arguments[1][len(arguments[1]) // 2 :]) + len(arguments[1]) // 2
            kill()
        return call(*arguments, **named)

    return version


def finish(self: ImageWriter, *arguments: Any, **named: Any) -> Any:
    calls: list[str] = []
    for module, name in CALLS:
        setattr(module, name, deadly(getattr(module, name), name, calls))
    return complete(self, *arguments, **named)


def deadly_at(method: Callable[..., Any], number: int) -> Callable[..., Any]:
    counts = count(1)

    def version(*arguments: Any, **named: Any) -> Any:
        if next(counts) == number:
            kill()
        return method(*arguments, **named)

    return version


if __name__ == "__main__":
    name, _, number = os.environ["DEADLY_CALL"].partition(".")
    if name == "add":
        ImageWriter.add = deadly_at(ImageWriter.add, int(number))  # type: ignore[method-assign]
    if name == "read":
        ImageReader.read_into = deadly_at(ImageReader.read_into, int(number))  # type: ignore[method-assign]
    if name == "make":
        Restorer.make = deadly_at(Restorer.make, int(number))  # type: ignore[method-assign]
    complete = ImageWriter.finish
    ImageWriter.finish = finish  # type: ignore[method-assign]
    run()
