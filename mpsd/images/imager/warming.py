"""An imager before it is asked for an image: modules and a context, made while the process that started it does other work.

Prose: docs/images.md, "An imager that is warm".
"""

import sys
import threading
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from mpsd.images.imager.requests import FAILURES
from mpsd.images.rules.refusals import NoSuchImage

if TYPE_CHECKING:
    from mpsd.images.imager.device import Gpu

END_SECONDS = 5.0  # that the end waits for a context: one may wait for a place at MPS for as long as others have theirs


class Driver:
    """Guards that the thread that makes a context gets one request, the first for which it is to make one."""

    def __init__(self) -> None:
        self._first: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self._has_begun = False
        self._thread = threading.Thread(target=warm, args=(self._first,), name="driver", daemon=True)
        self._thread.start()

    def begin(self, asked: dict[str, Any]) -> None:
        """Make a context for this request, unless one was given before."""
        if not self._has_begun:
            self._has_begun = True
            self._first.put(asked)

    def end(self) -> None:
        """Begin no context any more, and wait for one that is being made, but not for ever."""
        self.begin({})
        self._thread.join(END_SECONDS)


def warm(first: SimpleQueue[dict[str, Any]]) -> None:
    """Load modules, and make a context after the first request.  A request for an image meets the same failure.

    first: gets that request, or an empty one at the end.  For `warm`, which asks for no image yet, print on standard error why
    no context was made."""
    asked: dict[str, Any] = {}
    try:
        device = import_module("mpsd.images.imager.device")
        if first.empty():  # else the main thread loads what it needs
            import_module("mpsd.images.imager.restoring")
        asked = first.get()  # as long as the process wants
        if not asked:
            return
        gpu = device.prepare()
        if asked["do"] == "warm":  # the main thread loads nothing yet
            import_module("mpsd.images.imager.restoring")
        if gpu is not None and asked.get("arena") and asked["do"] == "warm":
            _keep_room(gpu, asked)
    except (*FAILURES, ImportError) as exc:
        if asked.get("do") == "warm":
            _say(str(exc) or type(exc).__name__)


def _keep_room(gpu: "Gpu", asked: dict[str, Any]) -> None:
    """Let the context go if the arena's newest image does not fit with it: other processes may restore it first."""
    from mpsd.images.imager.device import free_bytes
    from mpsd.images.store import Images

    with suppress(NoSuchImage), Images.open_existing(Path(asked["directory"])) as images:
        facts = next(each.facts for each in images.newest(asked["arena"]).arenas if each.facts.name == asked["arena"])
        gpu.set_current()
        if (free := free_bytes()) < facts.content_bytes:
            gpu.close()
            _say(f"{free >> 20} MiB of GPU memory are free, and the image of {facts.name} has {facts.content_bytes >> 20} MiB")


def _say(why: str) -> None:
    print(f"mpsd-imager: it starts cold: {why}", file=sys.stderr, flush=True)
