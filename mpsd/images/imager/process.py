"""The imager: a process that takes images of one arena, one after the other, as its starter asks (requests.py);
or that restores one.

It runs as the arena's user and has the arena's memory by descriptors, so it outlives the process that asked.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from mpsd.errors import MpsdError
from mpsd.images.imager.device import ArenaMemory, device_of
from mpsd.images.imager.requests import Channel, Progress, Request, read_file
from mpsd.images.imager.restoring import Restorer
from mpsd.images.imager.taking import ClientWroteError, Copier, Taking
from mpsd.images.rules.manifest import ArenaFacts
from mpsd.images.rules.refusals import NoSuchImage
from mpsd.images.store import Images
from mpsd.images.writer import ImageWriter

FAILURES = (MpsdError, ClientWroteError, OSError, ValueError, LookupError, MemoryError)


class Imager:
    """One arena, open to be read; at most one image is under way."""

    def __init__(self, channel: Channel, request: Request) -> None:
        asked = request.asked
        self._channel, self._asked, self._progress = channel, asked, Progress(request)
        self._device = device_of(asked["gpu"])
        self._copier = Copier(self._device)
        self._memory = ArenaMemory(self._device, asked["window_bytes"])
        self._images = Images.open(Path(asked["directory"]))
        self._taking: Taking | None = None
        self._writer: ImageWriter | None = None
        channel.answer("ready")

    def allocations(self, request: Request) -> None:
        for (offset, size, since), descriptor in zip(request.asked["items"], request.descriptors, strict=True):
            self._memory.add(offset, size, since, descriptor)

    def drop(self, request: Request) -> None:
        gone = set(request.asked["offsets"])
        self._memory.keep([each for each in self._memory.allocations.items() if each[0] not in gone])

    def prepare(self, request: Request) -> None:
        self.give_up()
        writer = self._writer = self._images.begin(request.asked["name"])
        self._progress.begin()
        taking = self._taking = Taking(self._copier, self._memory, partial(self._save, writer), self._progress.expect)
        taking.prepare()
        self._channel.answer("prepared")

    def _save(self, writer: ImageWriter, offset: int, data: memoryview) -> None:
        writer.add(self._asked["arena"], offset, data)
        self._progress.add(len(data))

    def stage(self, request: Request) -> None:
        """Stage, let the client go on, and complete the image."""
        taking, writer = self._taking, self._writer
        if not taking or not writer:
            raise ValueError("no image was prepared")
        staged, direct = taking.stage()
        instant, facts = time.time(), self._facts(request)  # now: the client changes its forward state when it goes on
        if not self._channel.answer("staged", staged_bytes=staged, direct_bytes=direct):
            raise ClientWroteError("the client no longer waits at the barrier")
        taking.finish()
        manifest = writer.finish(instant, [facts])
        new_bytes = writer.new_bytes
        self._taking = self._writer = None
        self._channel.answer("complete", name=manifest.name, bytes=manifest.content_bytes, new_bytes=new_bytes)
        with suppress(*FAILURES):  # the image is complete; the next one tries again
            self._images.tidy()

    def _facts(self, request: Request) -> ArenaFacts:
        arena, asked, files = self._asked, request.asked, list(request.descriptors)
        return ArenaFacts(
            name=arena["arena"],
            gpu=arena["gpu"],
            base=arena["base"],
            window_bytes=arena["window_bytes"],
            capacity_bytes=arena["capacity_bytes"],
            allocations=tuple((offset, size) for offset, (size, _) in sorted(self._memory.allocations.items())),
            commit=asked["commit"],
            generation=asked["generation"],
            layout=read_file(files.pop(0)) if asked["has_layout"] else b"",
            state=read_file(files.pop(0)) if asked["has_state"] else b"",
            state_generation=asked["state_generation"],
        )

    def give_up(self, why: str = "") -> None:
        """End the image that is under way; it leaves nothing.  why: it has failed."""
        if why:
            with suppress(*FAILURES):  # as on a full disk
                self._images.directory.note_failure(why)
        taking, writer, self._taking, self._writer = self._taking, self._writer, None, None
        if writer:
            writer.close()
        if taking:
            taking.close()  # fails if the context is lost


def serve(descriptor: int) -> int:
    """Serve one process until it closes its end."""
    channel = Channel(descriptor)
    work: Imager | Restorer | None = None
    while request := channel.receive():
        with request:
            try:
                if begin := BEGINNINGS.get(request.asked["do"]):
                    work = begin(channel, request)
                else:
                    assert work, "the first request has to be `open` or `restore`"
                    HANDLERS[request.asked["do"]](work, request)
            except FAILURES as exc:
                why = str(exc) or type(exc).__name__
                if work:
                    work.give_up(why)
                channel.answer("failed", why=why, is_missing=isinstance(exc, NoSuchImage))
    if work:
        work.give_up()
    return 0


BEGINNINGS: dict[str, type[Imager | Restorer]] = {"open": Imager, "restore": Restorer}
HANDLERS: dict[str, Callable[[Any, Request], None]] = {
    "allocations": Imager.allocations, "drop": Imager.drop, "prepare": Imager.prepare, "stage": Imager.stage,
    "make": Restorer.make, "fill": Restorer.fill,
}  # fmt: skip
