"""Images of the arenas of one process, one after the other, as that process asks (requests.py).

The imager runs as the arena's user and has the arena's memory by descriptors, so it outlives the process that asked.
"""

import math
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from mpsd.images.imager.copier import MOST_RATE, SLOTS, Copier
from mpsd.images.imager.device import ArenaMemory, Gpu
from mpsd.images.imager.parity_taking import ParityTaking
from mpsd.images.imager.requests import FAILURES, Channel, Progress, Request, read_file
from mpsd.images.imager.stripes import Member
from mpsd.images.imager.taking import ClientWroteError, Taking
from mpsd.images.rules.block_hash import BlockHash
from mpsd.images.rules.manifest import BLOCK_BYTES, ArenaFacts
from mpsd.images.rules.membership import Epoch
from mpsd.images.store import Images
from mpsd.images.writer import ImageWriter


class OpenArena:
    """An arena that is open to be read, and its part of the image that is under way."""

    def __init__(self, asked: dict[str, Any], copiers: dict[str, Copier], key: bytes) -> None:
        """copiers: by the UUID of the GPU.  key: of the hash."""
        self._asked = asked
        self._gpu = Gpu(asked["gpu"])
        self._gpu.set_current()
        if asked["gpu"] not in copiers:
            copiers[asked["gpu"]] = Copier(self._gpu, key)
        self._copier = copiers[asked["gpu"]]
        self._memory = ArenaMemory(self._gpu.number, asked["window_bytes"])
        self._taking: Taking | None = None
        self._facts: ArenaFacts | None = None

    @property
    def gpu(self) -> str:
        return str(self._asked["gpu"])

    def member(self) -> Member:
        """Begin a parity instead of an image: return the memory."""
        self._facts = None
        return Member(self._gpu, self._copier, self._memory)

    def allocations(self, request: Request) -> None:
        self._gpu.set_current()
        for (offset, size, since), descriptor in zip(request.asked["items"], request.descriptors, strict=True):
            self._memory.add(offset, size, since, descriptor)

    def drop(self, request: Request) -> None:
        self._gpu.set_current()
        gone = set(request.asked["offsets"])
        self._memory.keep([each for each in self._memory.allocations.items() if each[0] not in gone])

    def prepare(self, writer: ImageWriter, hash_of: BlockHash, progress: Progress) -> None:
        def save(offset: int, sums: bytes, data: memoryview) -> None:
            writer.add(self._asked["arena"], offset, data, sums)
            progress.add(len(data))

        def share(offset: int, sums: bytes) -> bool:
            is_known = writer.share(self._asked["arena"], offset, hash_of.name_of(sums))
            progress.add(BLOCK_BYTES if is_known else 0)
            return is_known

        self._gpu.set_current()
        self._taking, self._facts = Taking(self._copier, self._memory, save, progress.expect, share), None
        self._taking.prepare()

    def facts(self, request: Request) -> None:
        """Note the arena's facts at the barrier: the client changes its forward state when it goes on."""
        arena, asked, files = self._asked, request.asked, list(request.descriptors)
        self._facts = ArenaFacts(
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

    def noted_facts(self) -> ArenaFacts:
        if not self._facts:
            raise ValueError("an arena's facts are missing")
        return self._facts

    def stage(self) -> tuple[int, int]:
        """Return the bytes that were staged, and those that went to the host at once."""
        self.noted_facts()
        if not self._taking:
            raise ValueError("the image was not prepared")
        self._gpu.set_current()
        return self._taking.stage()

    def finish(self, rate: float) -> ArenaFacts:
        assert self._taking
        self._gpu.set_current()
        self._taking.finish(rate)
        return self.noted_facts()

    def give_up(self) -> None:
        taking, self._taking = self._taking, None
        if taking:
            self._gpu.set_current()
            taking.close()  # fails if the context is lost


class Imager:
    """The arenas of one process; at most one image is under way, of all of them."""

    def __init__(self, channel: Channel, request: Request) -> None:
        self._channel, self._progress = channel, Progress(request)
        self._images = Images.open(Path(request.asked["directory"]))
        self._copiers: dict[str, Copier] = {}  # by the UUID of the GPU
        self._arenas: dict[str, OpenArena] = {}
        self._writer: ImageWriter | None = None
        self._parity: ParityTaking | None = None
        self._has_failed = False
        self.open(request)

    def open(self, request: Request) -> None:
        self._arenas[request.asked["arena"]] = OpenArena(request.asked, self._copiers, self._images.directory.hash_of.block_key)

    def wait(self, request: Request) -> None:
        """Answer that everything before was done."""
        self._channel.answer("ready")

    def allocations(self, request: Request) -> None:
        self._arenas[request.asked["arena"]].allocations(request)

    def drop(self, request: Request) -> None:
        self._arenas[request.asked["arena"]].drop(request)

    def facts(self, request: Request) -> None:
        self._arenas[request.asked["arena"]].facts(request)

    def prepare(self, request: Request) -> None:
        self.give_up()
        asked = request.asked
        epoch = msgspec.convert(asked.get("epoch"), Epoch | None)
        self._writer = self._images.begin(asked["name"], asked["group"], SLOTS, epoch)
        self._progress.begin()
        if asked.get("parity"):
            self._prepare_parity(self._writer, asked["parity"])
        else:
            for each in self._arenas.values():
                each.prepare(self._writer, self._images.directory.hash_of, self._progress)
        self._channel.answer("prepared")

    def _prepare_parity(self, writer: ImageWriter, parity: int) -> None:
        arenas, progress = self._arenas.values(), self._progress
        gpus, members = [each.gpu for each in arenas], [each.member() for each in arenas]
        hash_of = self._images.directory.hash_of
        self._parity = ParityTaking(members, gpus, parity, writer, hash_of, progress.expect, progress.add)
        self._parity.prepare()

    def stage(self, request: Request) -> None:
        """Stage, let the client go on, and complete the image.  What need not be done before that is done afterwards."""
        arenas, parity = self._arenas.values(), self._parity
        if parity:
            facts = [each.noted_facts() for each in arenas]
            staged, direct = 0, parity.stage()
        else:
            staged, direct = (sum(each) for each in zip(*(each.stage() for each in arenas), strict=True))
        until, is_waited_for = request.asked.get("until"), bool(request.asked.get("is_waited_for"))
        if until is not None and time.monotonic() > until:  # it may have written since what was found unchanged was hashed
            raise ClientWroteError("the client stood still for a shorter time than the barrier took")
        instant, writer = time.time(), self._writer
        if not self._channel.answer("staged", staged_bytes=staged, direct_bytes=direct):
            raise ClientWroteError("the client no longer waits at the barrier")
        assert writer
        if parity:
            manifest = parity.finish(instant, facts)
        else:
            rate = math.inf if is_waited_for else MOST_RATE
            manifest = writer.finish(instant, [each.finish(rate) for each in arenas], is_latest=True)
        self._writer = self._parity = None
        self._channel.answer("complete", name=manifest.name, bytes=manifest.content_bytes, new_bytes=writer.new_bytes)
        with suppress(*FAILURES):  # the image is complete; the next one tries again
            for each in arenas:
                each.give_up()
            if not is_waited_for:  # else a replica reads the image now, and would wait for the directory's lock
                self._images.tidy()

    def give_up(self, why: str = "") -> None:
        """End the image that is under way; it leaves nothing.  why: it has failed.

        After the answer about a failure this is called again: the disk space may have been missing that killed imagers left, or
        images that no imager has removed, as after a move."""
        if why:
            self._has_failed = True
            with suppress(*FAILURES):  # as on a full disk
                self._images.directory.note_failure(why)
        parity, self._parity = self._parity, None
        writer, self._writer = self._writer, None
        try:
            if parity:
                parity.close()  # first: its threads write
        finally:
            if writer:
                writer.close()
        if self._has_failed and not why:
            self._has_failed = False
            with suppress(*FAILURES):
                self._images.tidy(has_failed=True)
        for each in self._arenas.values():
            each.give_up()
