"""The imager: a process that takes images of another process's arenas, or makes an arena of one (requests.py)."""

import threading
from contextlib import suppress
from importlib import import_module
from typing import Any

from mpsd.errors import MpsdError
from mpsd.images.imager.requests import Channel, Request
from mpsd.images.rules.refusals import NoSuchImage

FAILURES = (MpsdError, OSError, ValueError, LookupError, MemoryError)
# What is asked first, and who does it; loaded then: restoring does without NumPy.
BEGINNINGS = {"open": ("process", "Imager"), "restore": ("restoring", "Restorer")}
# Methods of these:
REQUESTS = ("open", "wait", "allocations", "drop", "facts", "prepare", "stage", "other", "make", "fill", "renew")


def serve(descriptor: int) -> int:
    """Serve one process until it closes its end.

    Modules and the context are loaded before the first request, which may come much later: a process can start it early."""
    threading.Thread(target=_warm, name="driver").start()
    channel = Channel(descriptor)
    work: Any = None
    while request := channel.receive():
        with request:
            try:
                if work is None:
                    work = _begin(channel, request)
                else:
                    getattr(work, REQUESTS[REQUESTS.index(request.asked["do"])])(request)
            except FAILURES as exc:
                why = str(exc) or type(exc).__name__
                if work:
                    work.give_up(why)
                channel.answer("failed", why=why, is_missing=isinstance(exc, NoSuchImage))
    if work:
        work.give_up()
    return 0


def _warm() -> None:
    """Load modules and make a context.  The first request meets the same failure, and answers it."""
    with suppress(*FAILURES, ImportError):
        import_module("mpsd.images.imager.device").prepare()  # in parallel to the main thread, which loads others
        import_module("mpsd.images.imager.restoring")


def _begin(channel: Channel, request: Request) -> Any:
    module, name = BEGINNINGS[request.asked["do"]]
    try:
        work = getattr(import_module(f"mpsd.images.imager.{module}"), name)
    except ImportError as exc:
        raise LookupError(f"mpsd-imager needs cuda-bindings and NumPy, the extra `images` of mpsd: {exc}") from None
    return work(channel, request)
