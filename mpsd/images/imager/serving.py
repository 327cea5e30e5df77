"""The imager: a process that takes images of another process's arenas, or makes an arena of one (requests.py).

Unless asked to warm up, it begins no context for an image that does not exist.  At its end it waits for one that it makes, but
not for ever: after an end before that the vendor's daemon may hang (docs/decisions/027).
"""

import threading
from importlib import import_module
from queue import SimpleQueue
from typing import Any

from mpsd.images.imager.requests import FAILURES, Channel, Request
from mpsd.images.imager.warming import warm
from mpsd.images.rules.refusals import NoSuchImage

# What is asked first, and who does it; loaded then: restoring does without NumPy.
BEGINNINGS = {"open": ("process", "Imager"), "restore": ("restoring", "Restorer")}
# Methods of these:
REQUESTS = ("open", "wait", "allocations", "drop", "facts", "prepare", "stage", "other", "make", "fill", "renew")
END_SECONDS = 5.0  # a context may wait for a place at MPS for as long as others have theirs


def serve(descriptor: int) -> int:
    """Serve one process until it closes its end."""
    first: SimpleQueue[dict[str, Any]] = SimpleQueue()
    driver = threading.Thread(target=warm, args=(first,), name="driver", daemon=True)
    driver.start()
    try:
        _serve(Channel(descriptor), first)
    finally:
        first.put({})
        driver.join(END_SECONDS)
    return 0


def _serve(channel: Channel, first: SimpleQueue[dict[str, Any]]) -> None:
    is_first, work = True, None  # is_first: `first` has nothing yet
    try:
        while request := channel.receive():
            with request:
                try:
                    if is_first and request.asked["do"] != "restore":
                        first.put(request.asked)
                        is_first = False
                    if request.asked["do"] == "warm":
                        pass
                    elif work is None:
                        work = _begin(channel, request)
                        if is_first:
                            first.put(request.asked)
                            is_first = False
                    else:
                        getattr(work, REQUESTS[REQUESTS.index(request.asked["do"])])(request)
                except FAILURES as exc:
                    why = str(exc) or type(exc).__name__
                    if work:
                        work.give_up(why)
                    channel.answer("failed", why=why, is_missing=isinstance(exc, NoSuchImage))
    finally:
        if work:
            work.give_up()


def _begin(channel: Channel, request: Request) -> Any:
    module, name = BEGINNINGS[request.asked["do"]]
    try:
        work = getattr(import_module(f"mpsd.images.imager.{module}"), name)
    except ImportError as exc:
        raise LookupError(f"mpsd-imager needs cuda-bindings and NumPy, the extra `images` of mpsd: {exc}") from None
    return work(channel, request)
