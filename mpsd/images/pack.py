"""A pack: a file of blocks, written by one process for one image, read by all images that share a block with that one.

Blocks are read and written past the page cache where the file system allows it (O_DIRECT): an image is read once, and would
push everything else out of memory.
"""

import errno
import fcntl
import os
from collections.abc import Sequence
from contextlib import suppress

from mpsd.images.directory import explained, try_lock
from mpsd.images.rules.block_hash import Bytes
from mpsd.images.rules.manifest import BLOCK_BYTES
from mpsd.images.rules.refusals import ImageDamaged
from mpsd.native import ffi, lib

_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Pack:
    """An open pack; owns the descriptor.  Threads can read and write different slots at the same time."""

    def __init__(self, directory: int, number: int, descriptor: int) -> None:
        self.number = number
        self._directory = directory
        self.descriptor = descriptor

    @classmethod
    def create(cls, directory: int, number: int) -> "Pack":
        """Create the pack, and lock it while it is open: no other process removes it.  Raise OSError."""
        made = cls(directory, number, _open(directory, str(number), os.O_RDWR | os.O_CREAT | os.O_EXCL))
        try_lock(made.descriptor)
        return made

    @classmethod
    def open(cls, directory: int, number: int) -> "Pack":
        """Raise ImageDamaged if the pack is missing."""
        try:
            return cls(directory, number, _open(directory, str(number), os.O_RDONLY))
        except OSError as exc:
            raise ImageDamaged(f"pack {number} cannot be opened: {exc.strerror}") from None

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def write(self, slot: int, data: Bytes) -> None:
        """Write a block.  Raise NoRoom if the disk is full, else OSError."""
        view, done, is_last_try = memoryview(data).cast("B"), 0, False
        try:
            while done < len(view):
                try:
                    count = os.pwrite(self.descriptor, view[done:], slot * BLOCK_BYTES + done)
                except OSError as exc:
                    if exc.errno != errno.EINVAL or is_last_try:
                        raise
                    self._be_indirect()  # which another thread may have done before
                    is_last_try = True
                    continue
                if not count:
                    raise OSError(errno.EIO, "nothing could be written")
                done += count
        except OSError as exc:
            raise explained(exc) from None

    def sync(self) -> None:
        """Wait until the disk has everything that was written, but for the pack's name (ImageDirectory.sync_packs).  Raise as
        `write`."""
        try:
            os.fsync(self.descriptor)
        except OSError as exc:
            raise explained(exc) from None

    def trim(self, used: Sequence[int]) -> int:
        """Return the disk space of all slots but the used ones, ascending, to the file system; return the bytes.

        A pack without used slots is removed.  The pack is locked.  Raise OSError.
        """
        before = os.fstat(self.descriptor)
        if not used:
            os.unlink(str(self.number), dir_fd=self._directory)
            return before.st_blocks * 512
        end = max(used[-1] + 1, -(-before.st_size // BLOCK_BYTES))
        for first, behind in zip([0, *(slot + 1 for slot in used)], [*used, end], strict=True):
            if first < behind:
                _punch(self.descriptor, first * BLOCK_BYTES, (behind - first) * BLOCK_BYTES)
        return (before.st_blocks - os.fstat(self.descriptor).st_blocks) * 512

    def _is_direct(self) -> bool:
        return bool(fcntl.fcntl(self.descriptor, fcntl.F_GETFL) & os.O_DIRECT)

    def _be_indirect(self) -> None:
        """Go without O_DIRECT: the memory, or the file system, does not suit it."""
        fcntl.fcntl(self.descriptor, fcntl.F_SETFL, fcntl.fcntl(self.descriptor, fcntl.F_GETFL) & ~os.O_DIRECT)


def _open(directory: int, name: str, flags: int) -> int:
    """Open with O_DIRECT if the file system allows it, which may refuse at the open or at the first transfer."""
    try:
        return os.open(name, flags | _FLAGS | os.O_DIRECT, 0o600, dir_fd=directory)
    except OSError as exc:
        if exc.errno != errno.EINVAL:
            raise
        if flags & os.O_CREAT:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=directory)  # Linux creates the file before the file system refuses the flag
        return os.open(name, flags | _FLAGS, 0o600, dir_fd=directory)


def free_slots(directory: int, number: int, used: Sequence[int]) -> int:
    """Free the slots of a pack that are not used, unless a process writes the pack; return the bytes.  Raise OSError."""
    pack = Pack(directory, number, os.open(str(number), os.O_RDWR | _FLAGS, dir_fd=directory))
    try:
        return pack.trim(used) if try_lock(pack.descriptor) else 0
    finally:
        pack.close()


def _punch(descriptor: int, at: int, size: int) -> None:
    """Free a part of a file.  On a file system that cannot, the space stays until the pack is removed."""
    flags = lib.FALLOC_FL_KEEP_SIZE | lib.FALLOC_FL_PUNCH_HOLE
    if lib.fallocate(descriptor, flags, at, size) and ffi.errno != errno.EOPNOTSUPP:
        raise OSError(ffi.errno, os.strerror(ffi.errno))
