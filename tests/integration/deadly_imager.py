"""An imager during whose completion of an image a process is killed: itself, or others.

    DEADLY_CALL      the call at which: its number among those that complete the image, or its name (the first one so called)
    DEADLY_VICTIMS   pids; `imager`: this process, `client`: the one that has started it
"""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from mpsd.images.imager.__main__ import run
from mpsd.images.writer import ImageWriter
from tests.unit.images.test_crashes import CALLS


def kill() -> None:
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


def finish(self: ImageWriter, *arguments: Any) -> Any:
    calls: list[str] = []
    for module, name in CALLS:
        setattr(module, name, deadly(getattr(module, name), name, calls))
    return complete(self, *arguments)


if __name__ == "__main__":
    complete = ImageWriter.finish
    ImageWriter.finish = finish  # type: ignore[method-assign]
    run()
