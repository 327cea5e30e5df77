"""The imager: a process that takes images of another process's arenas, or makes an arena of one (requests.py).

Unless asked to warm up, it begins no context for an image that does not exist.  At its end it waits for one that it makes, but
not for ever: after an end before that the vendor's daemon may hang (docs/decisions/027).
"""

from importlib import import_module
from typing import Any

from mpsd.images.imager.requests import FAILURES, Channel, Request
from mpsd.images.imager.warming import Driver
from mpsd.images.rules.refusals import NoSuchImage

# What is asked first, and who does it; loaded then: restoring does without NumPy.
BEGINNINGS = {"open": ("process", "Imager"), "restore": ("restoring", "Restorer")}
# Methods of these:
REQUESTS = ("open", "wait", "allocations", "drop", "facts", "prepare", "stage", "other", "make", "fill", "renew")


def serve(descriptor: int) -> int:
    """Serve one process until it closes its end."""
    driver = Driver()
    try:
        _serve(Channel(descriptor), driver)
    finally:
        driver.end()
    return 0


def _serve(channel: Channel, driver: Driver) -> None:
    work = None
    try:
        while request := channel.receive():
            with request:
                try:
                    what = request.asked["do"]
                    if what != "restore":
                        driver.begin(request.asked)
                    if what == "warm":
                        pass
                    elif work is None:
                        work = _begin(channel, request)
                        driver.begin(request.asked)  # a restore: the image exists
                    else:
                        getattr(work, REQUESTS[REQUESTS.index(what)])(request)
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
