"""Images of an arena that this process writes: started, brought to a barrier, and waited for.  Prose: mpsd's docs/images.md."""

import math
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpsd_client import _cuda
from mpsd_client._imager import ROWS_AT_ONCE, ImageError, Imager, Row, image_name, images_directory, memory_file

if TYPE_CHECKING:
    from mpsd_client._arena import Arena

BARRIER_SECONDS = 120.0
FINISH_SECONDS = 3600.0
STILL_SECONDS = 1800.0  # an imager that copies nothing for so long hangs: a slow disk may take long for the last sync


@dataclass(frozen=True, slots=True)
class Barrier:
    """What the barrier cost."""

    stall_seconds: float  # that this process waited
    staged_bytes: int  # had changed since they were copied, and were copied inside the GPU
    direct_bytes: int  # had changed too, and were copied to the host at once, without room on the GPU


@dataclass(frozen=True, slots=True)
class Epoch:
    """What an image is of, in a group of processes that take their images by themselves.

    life: as `mpsd-images epochs GROUP` prints it before a start of all members.  quorum: of the members; None: all.
    Prose: mpsd's docs/images.md, "Epochs of several processes"."""

    group: str
    member: str
    members: tuple[str, ...]
    life: int
    number: int
    quorum: int | None = None
    grace_seconds: float = 0.0

    @property
    def image_name(self) -> str:
        return f"{self.group}.{self.life}.{self.number}.{self.member}"


@dataclass(frozen=True, slots=True)
class Image:
    """A complete image."""

    name: str
    bytes: int  # of the arena
    new_bytes: int  # that no earlier image had


class Taking:
    """An image under way.  Its bytes will be those of the arenas at `barrier`."""

    def __init__(
        self, arenas: "Sequence[Arena]", imager: Imager, place: Path, name: str, group: str, epoch: Epoch | None, parity: int
    ) -> None:  # fmt: skip
        """Called by Arena.image."""
        self._arenas, self._imager, self._place, self.name = arenas, imager, place, name
        self._expected = "prepared"
        self._is_hung = False
        self._image: Image | None = None
        self._commits = [arena.committed for arena in arenas]
        for arena in arenas:
            imager.follow(arena.name, _pages(arena))
        whole = epoch and asdict(epoch) | {"quorum": len(epoch.members) if epoch.quorum is None else epoch.quorum}
        imager.ask({"do": "prepare", "name": name, "group": group, "epoch": whole, "parity": parity})

    @property
    def is_prepared(self) -> bool:
        """Whether most is copied: a barrier now stalls this process for the shortest time.  A failure counts, and `barrier`
        raises it."""
        return self._expected != "prepared" or self._imager.has_answered

    @property
    def has_failed(self) -> bool:
        return self._expected == "failed"

    def wait_for_answer(self, stop: threading.Event, seconds: float, limit: float = math.inf) -> bool:
        """Wait until the image is prepared or, after its barrier, complete, or has failed.  Look at `stop` so often; return
        False if it is set, or after `limit` seconds.  Raises TimeoutError if the imager hangs: there will be no image."""
        end = time.monotonic() + limit
        copied, since = self.progress, time.monotonic()
        while not self._imager.waits_for_answer(seconds):
            if stop.is_set() or time.monotonic() > end:
                return False
            if self.progress != copied or self._has_not_begun():
                copied, since = self.progress, time.monotonic()
            elif time.monotonic() > since + STILL_SECONDS:
                self._let_hang()
                raise TimeoutError(f"image {self.name}: the imager has copied nothing for {STILL_SECONDS:g} s")
        return True

    def _has_not_begun(self) -> bool:
        """Return whether the imager may wait for a place at MPS, where it keeps its turn."""
        return self._expected == "prepared" and self.progress == (0, 0)

    @property
    def progress(self) -> tuple[int, int]:
        """The bytes that are copied, and those to copy: of all blocks, and again of those that change."""
        return self._imager.progress

    def barrier(self, timeout: float = BARRIER_SECONDS, *, is_waited_for: bool = False) -> Barrier:
        """Make the image that of this moment, and return when this process may write again.

        No thread may launch work that writes the arenas until it returns; it waits for work that was launched before, and for
        the copies: look at `is_prepared`.  Uncommitted blocks are not part of the image.  is_waited_for: the program does
        nothing before the image is complete, which then need not spare it.
        Raises ImageError (there will be no image), TimeoutError."""
        if self._expected != "prepared":
            raise ImageError(f"image {self.name} has had its barrier, or has failed")
        self._expected = "failed"
        try:
            self._imager.answer("prepared", timeout)
            began = time.monotonic()
            with ExitStack() as stack:
                for arena in self._arenas:
                    stack.enter_context(arena._working())
                    _cuda.call("cuCtxSynchronize")
                for arena, commit in zip(self._arenas, self._commits, strict=True):
                    self._give_facts(arena, commit)
                self._imager.ask({"do": "stage", "is_waited_for": is_waited_for})
                staged = self._imager.answer("staged", timeout)
        except BaseException as exc:
            self._is_hung = isinstance(exc, TimeoutError)
            self._imager.close()  # first: the imager then knows that this process may write
            raise
        self._expected = "complete"
        return Barrier(time.monotonic() - began, staged["staged_bytes"], staged["direct_bytes"])

    def _give_facts(self, arena: "Arena", commit: int) -> None:
        if arena.committed != commit:
            self._imager.follow(arena.name, _pages(arena))
        with ExitStack() as stack:
            layout, state = None, arena.fetch_state()
            if state:
                stack.callback(os.close, state[0])
            if arena.layout is not None:
                layout = memory_file(arena.layout)
                stack.callback(os.close, layout)
            self._imager.facts(arena.name, arena.committed, arena.generation, layout, state[:2] if state else None)

    def wait(self, timeout: float = FINISH_SECONDS) -> Image:
        """Wait until the image is complete and on the disk.  Raises ImageError, TimeoutError."""
        if self._image:
            return self._image
        if self._expected != "complete":
            raise ImageError(f"image {self.name} has not had its barrier, or has failed")
        try:
            found = self._imager.answer("complete", timeout)
        except ImageError:
            self._expected = "failed"
            raise
        self._image = Image(found["name"], found["bytes"], found["new_bytes"])
        return self._image

    def settle(self, place: Path, arenas: "Sequence[Arena]") -> Imager | None:
        """End this image before its barrier, or wait for it after that.  Return its process if it serves images of these arenas
        in `place`; not after a failure, which may be the loss of its context.

        Raises ImageError if it did not answer in time, and has not ended: another one beside it would hang, too."""
        if self._is_hung and self._imager.is_alive:
            raise ImageError(f"the imager of image {self.name} did not answer in time, and has not ended")
        try:
            is_same = (place, list(arenas)) == (self._place, list(self._arenas))
            is_usable = self._expected != "failed" and is_same and self._imager.is_alive
            if self._expected == "prepared":
                self._expected = "failed"
                self._imager.answer("prepared", FINISH_SECONDS)
            elif self._expected == "complete":
                self.wait()
            if is_usable:
                return self._imager
        except ImageError:
            pass  # the program's own call of `wait` raises it
        except TimeoutError:
            self._let_hang()
            raise
        self._imager.close()
        return None

    def _let_hang(self) -> None:
        self._expected, self._is_hung = "failed", True
        self._imager.close()

    def end(self) -> None:
        """Let the imager go: what is staged is finished, anything else given up."""
        self._imager.close()


def begin(
    arenas: "Sequence[Arena]", before: Taking | None, name: str, directory: str | os.PathLike[str] | None, group: str,
    epoch: Epoch | None, parity: int,
) -> Taking:  # fmt: skip
    """Begin an image, in the process of the image before if that is of the same arenas and directory."""
    if bool(group) != (len(arenas) > 1) or len({arena.name for arena in arenas}) != len(arenas):
        raise ValueError("an image of several arenas has a group, each arena once, and one of a single arena has none")
    if parity and (epoch or not group):
        raise ValueError("parity is of the arenas of a group, and of no epoch")
    if epoch:
        if name:
            raise ValueError("an image of an epoch has the name of the epoch: leave out its own")
        name = epoch.image_name
    place = Path(directory) if directory else images_directory()
    imager = before.settle(place, arenas) if before else None
    if imager is None:
        imager = Imager([_facts(arena) for arena in arenas], place)
    try:
        return Taking(arenas, imager, place, name or image_name(group or arenas[0].name), group, epoch, parity)
    except BaseException:
        imager.close()
        raise


def _facts(arena: "Arena") -> dict[str, Any]:
    facts = {"window_bytes": arena.window_bytes, "capacity_bytes": arena.capacity_bytes, "base": arena.base}
    return {"arena": arena.name, "gpu": arena.gpu, **facts}


def _pages(arena: "Arena") -> Iterator[tuple[list[Row], list[int]]]:
    """Yield the committed allocations, with descriptors that the caller closes."""
    after = None
    while True:
        params: dict[str, Any] = {"id": arena.id, "limit": ROWS_AT_ONCE} | ({} if after is None else {"after": after})
        with arena._lock:  # another thread may close it
            arena._open_handle()
            found, descriptors = arena._session.ask("arena.take", params)
        yield [(int(row[0]), int(row[1]), int(row[2])) for row in found["items"]], descriptors
        after = found.get("next")
        if after is None:
            return
