"""An imager before it is asked for an image: modules and a context, made while the process that started it does other work.

Prose: docs/images.md, "An imager that is warm".
"""

import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from mpsd.images.imager.requests import FAILURES
from mpsd.images.rules.refusals import NoSuchImage

if TYPE_CHECKING:
    from mpsd.images.imager.device import Gpu


def warm(first: SimpleQueue[dict[str, Any]]) -> None:
    """Load modules, and make a context after the first request.  What asks for an image meets the same failure, and answers it.

    first: gets that request, or an empty one at the end.  For `warm`, which asks for no image yet, say on standard error why
    there is no context."""
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
    """Let the context go if the arena's newest image does not fit beside it: other processes may restore it first."""
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
