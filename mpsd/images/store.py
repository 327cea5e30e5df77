"""The images of one user: list, find, begin, read, remove, and free what no image uses.  Prose: docs/images.md.

Everything here may wait for the disk: call it in a thread.
"""

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
from msgspec import Struct

from mpsd.errors import NoRoom
from mpsd.images.directory import MANIFEST_IN_WORK, Held, ImageDirectory, check_free
from mpsd.images.pack import Pack, free_slots
from mpsd.images.reader import Damage, ImageReader
from mpsd.images.rules.manifest import BlockPlace, Manifest
from mpsd.images.rules.membership import Epoch, check_epoch
from mpsd.images.rules.naming import check_group, check_name
from mpsd.images.rules.refusals import ImageDamaged, NoSuchImage
from mpsd.images.rules.retention import Limits, plan_removal
from mpsd.images.writer import ImageWriter

MOST_IMAGES = 512  # of one directory; a writer has one descriptor of each open
MOST_WITH_RECEIVED = 384  # an image is received up to so many: the other places stay for images that are taken here
MOST_MANIFESTS_BYTES = 512 << 20  # of all images; an image is received up to so many: each that begins reads all of them


class Listing(Struct, frozen=True):
    """The complete images, oldest first, and why others cannot be read, by name."""

    images: tuple[Manifest, ...]
    damaged: dict[str, str]


class Images:
    """Guards that an image is complete or absent, and that no block of one is freed while a process uses it."""

    def __init__(self, directory: ImageDirectory) -> None:
        self.directory = directory

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the directory, which is made if it is missing.

        Raise UnusablePath: others can write there, or the key is gone.
        """
        return cls(ImageDirectory(path))

    @classmethod
    def open_existing(cls, path: Path) -> Self:
        """Open a directory that must be there, of images or empty: a mistyped path makes none.  Raise BadRequest; as `open`."""
        return cls(ImageDirectory(path, must_exist=True))

    def close(self) -> None:
        self.directory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def listing(self) -> Listing:
        images, damaged = [], {}
        for name in self.directory.names():
            try:
                images.append(self.directory.read(name))
            except NoSuchImage:
                continue  # another process has removed it in between
            except ImageDamaged as exc:
                damaged[name] = str(exc)
        return Listing(tuple(sorted(images, key=lambda each: each.instant)), damaged)

    def find(self, name: str) -> Manifest:
        """Raise NoSuchImage or ImageDamaged."""
        return self.directory.read(name)

    def newest(self, arena: str, *, skips_damaged: bool = False) -> Manifest:
        """Return the newest image that has the blocks of an arena of this name.

        Raise NoSuchImage; ImageDamaged if a manifest cannot be read, unless it is to be skipped: it may be of the newest one.
        """
        listing = self.listing()
        if listing.damaged and not skips_damaged:
            why = "; ".join(listing.damaged.values())
            raise ImageDamaged(f"{why}: it may be the newest of arena {arena}: remove it to go on with the one before")
        try:
            return newest_of(listing.images, arena)
        except ValueError:
            raise NoSuchImage(f"there is no image of an arena {arena} in {self.directory.path}") from None

    def begin(
        self, name: str, group: str = "", files: int = 1, epoch: Epoch | None = None, most_images: int = MOST_IMAGES
    ) -> ImageWriter:
        """Begin an image, which exists once its writer has finished.

        files: packs for its blocks, since Linux lets one thread at a time write to a file.  most_images: of the directory, with
        this one.
        Raise BadRequest (an image has the name), NoRoom.
        """
        check_name(name)
        check_group(group)
        if epoch is not None:
            check_epoch(epoch)
        held: list[Held] = []
        packs: list[Pack] = []
        directory = self.directory
        quota_bytes = directory.limits().quota_bytes
        try:
            with directory.locked():
                check_free(directory, name)
                names = directory.names()
                if len(names) >= most_images:
                    raise NoRoom(f"{directory.path} has {len(names)} images, of {most_images} at most: remove some")
                for each in names:
                    with suppress(ImageDamaged):  # `verify` reports it; this image shares no block with it
                        held.append(directory.hold(each))
                first = 1 + max(_numbers(os.listdir(directory.packs)), default=0)
                for number in range(first, first + files):
                    packs.append(Pack.create(directory.packs, number))
            return ImageWriter(directory, name, group, epoch, held, packs, quota_bytes)
        except BaseException:
            for pack in packs:
                pack.close()
            for one in held:
                os.close(one.descriptor)
            raise

    def reader(self, name: str) -> ImageReader:
        """Open an image; its blocks stay until the reader is closed.  Raise NoSuchImage or ImageDamaged."""
        with self.directory.locked():
            return ImageReader(self.directory, self.directory.hold(name))

    def verify(self, names: Iterable[str] = (), told: Callable[[int], None] = lambda size: None) -> Iterator[Damage]:
        """Read all blocks of these images, or of all; yield what is not as it was written.  Later images do not share that.

        told: called with the bytes of each block that was read.  Raise NoSuchImage for a name in `names`.
        """
        known: dict[BlockPlace, str] = {}
        try:
            for name in names or self.directory.names():
                try:
                    with self.reader(name) as image:
                        yield from image.verify(known, told)
                except ImageDamaged as exc:
                    yield Damage(name, "", 0, str(exc))
                except NoSuchImage:
                    if names:
                        raise
        finally:
            self.directory.note_bad(place for place, why in known.items() if why)

    def remove(self, name: str) -> None:
        """Remove an image, damaged or not; `collect` frees its disk space.  Raise NoSuchImage."""
        self.directory.remove(name)

    def set_limits(self, limits: Limits) -> None:
        """Set what the user allows, for all processes that use the directory.  Raise OSError."""
        with self.directory.locked():
            self.directory.replace("limits", msgspec.json.encode(limits))

    def tidy(self, *, has_failed: bool = False) -> None:
        """After an image: remove the images that the limits do not allow, and free what no image uses.

        has_failed: the image; free that also if no image was removed: what killed processes left may have taken its room."""
        limits = self.directory.limits()
        with suppress(ImageDamaged):  # `verify` and `list` report it
            if self.retain(limits.keep, limits.age_seconds) or has_failed:
                self.collect()

    def retain(self, keep: int | None, age_seconds: float | None) -> list[str]:
        """Remove the images that are too many or too old (rules/retention.py); return their names."""
        gone = [each.name for each in plan_removal(self.listing().images, time.time(), keep, age_seconds)]
        for name in gone:
            with suppress(NoSuchImage):
                self.remove(name)
        return gone

    def collect(self) -> int:
        """Free the disk space of blocks that no image has, and of images that were never finished; return the bytes.

        Blocks of an image that a process writes or reads stay.  Raise ImageDamaged, and free nothing, if a manifest cannot be
        read: the blocks of that image are not known.  Remove that image first.
        """
        directory = self.directory
        with directory.locked():
            images = [directory.read(name) for name in directory.names()]
            os.fsync(directory.complete)
            images += directory.removed_in_use()
            os.fsync(directory.removed)  # before blocks go: after a power cut no manifest that names them comes back
            used = _used_slots(images)
            freed = 0
            for name in os.listdir(directory.packs):
                if name.isdecimal():
                    freed += free_slots(directory.packs, int(name), sorted(used[int(name)]))
            with suppress(FileNotFoundError):
                os.unlink(MANIFEST_IN_WORK, dir_fd=directory.top)  # of a writer that was killed
            return freed


def newest_of(images: Iterable[Manifest], arena: str) -> Manifest:
    """Return the newest one that has the blocks of an arena of this name.  Raise ValueError: none has."""
    those = [each for each in images if not each.members and any(one.facts.name == arena for one in each.arenas)]
    return max(reversed(those), key=lambda each: each.instant)


def _used_slots(images: Iterable[Manifest]) -> dict[int, set[int]]:
    used: defaultdict[int, set[int]] = defaultdict(set)
    for image in images:
        for place in image.places():
            used[place.pack].add(place.slot)
    return used


def _numbers(names: Iterable[str]) -> list[int]:
    return [int(name) for name in names if name.isdecimal()]
