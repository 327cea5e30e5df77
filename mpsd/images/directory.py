"""The directory of one user's images: its files, its lock and its key.

    DIRECTORY/            0700, of the user who takes the images; so are all files in it, 0600
      key                 of the keyed hash (rules/block_hash.py)
      lock                flock: of a process that adds, removes or opens an image
      restore-lock        flock: of the process that restores an arena that several miss (mpsd_client)
      complete/NAME       manifests
      removed/NAME.RANDOM manifests of removed images, as long as a process still uses them
      packs/NUMBER        blocks; flock: of the process that writes it
      limits              what the user allows (rules/retention.py)
      bad                 places where damage was found, as in a manifest
      manifest-new        a manifest that is being written, under the lock

Prose: docs/images.md, "The directory".
"""

import errno
import fcntl
import os
import stat
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from mpsd.errors import BadRequest, NoRoom, UnusablePath
from mpsd.host.trusted_directories import look, open_directory
from mpsd.images.rules.block_hash import KEY_BYTES, BlockHash
from mpsd.images.rules.manifest import MOST_MANIFEST_BYTES, BlockPlace, Manifest, decode, encode, read_places, write_places
from mpsd.images.rules.naming import check_name
from mpsd.images.rules.refusals import ImageDamaged, NoSuchImage
from mpsd.images.rules.retention import Limits

_COMPLETE = "complete"
_FIRST_FILES = frozenset([_COMPLETE, "restore-lock"])  # one of them is there before any other file
MANIFEST_IN_WORK = "manifest-new"
LOCK_SECONDS = 60.0  # what others do under the lock takes far less than a second; a hung disk may take for ever
_MOST_LIMITS_BYTES = 4096
_MOST_WHY = 500  # characters
_POLL_SECONDS = 0.001  # most have it for less; a replica waits for it in the pause of a move
_OPEN_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # O_NONBLOCK: the name may be a FIFO's


class Held(Struct, frozen=True):
    """A manifest that its holder uses: nothing removes its blocks until `descriptor`, with its shared flock, is closed."""

    manifest: Manifest
    descriptor: int


class Failures(Struct, frozen=True):
    """The images that were begun and failed.  at, why: of the last one."""

    count: int = 0
    at: float = 0.0
    why: str = ""


class ImageDirectory:
    """Guards the names: which images exist, and which files belong to none.  Owns its descriptors."""

    def __init__(self, path: Path, *, must_exist: bool = False) -> None:
        """Raise UnusablePath if others could write there, now or earlier, or if the key is missing but images exist.

        must_exist: make no directory, and none of one with other files.  Raise BadRequest.
        """
        self.path = path = path.absolute()
        self._owned: list[int] = []
        try:
            if refusal := look(path).refusal:  # before anything is made: the way may lead through another user's directory
                raise UnusablePath(refusal)
            if must_exist:
                _check_exists(path)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.top = self._own(open_directory(path, make_mode=0o700).descriptor)
        except UnusablePath as exc:
            raise UnusablePath(f"{path}: {exc}") from None
        except NotADirectoryError:
            raise UnusablePath(f"{path}: it is not a directory") from None
        except OSError as exc:
            raise UnusablePath(f"{path}: {exc.strerror}") from None
        try:
            self._make_private(self.top)
            self.complete, self.removed, self.packs = (self._folder(name) for name in (_COMPLETE, "removed", "packs"))
            with self.locked():
                self.hash_of = BlockHash(self._key())
        except BaseException:
            self.close()
            raise

    def _own(self, descriptor: int) -> int:
        self._owned.append(descriptor)
        return descriptor

    def close(self) -> None:
        while self._owned:
            os.close(self._owned.pop())

    def _folder(self, name: str) -> int:
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=self.top)
            os.fsync(self.top)
        found = self._own(os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.top))
        self._make_private(found)
        return found

    def _make_private(self, directory: int) -> None:
        """Let the user alone in.  Raise UnusablePath if a file there is another user's: others could write there earlier."""
        if os.fstat(directory).st_uid == os.geteuid():
            os.fchmod(directory, 0o700)
        for name in os.listdir(directory):
            with suppress(FileNotFoundError):
                if (uid := os.stat(name, dir_fd=directory, follow_symlinks=False).st_uid) not in (0, os.geteuid()):
                    raise UnusablePath(f"{self.path}: {name} is of uid {uid}, who may know the key: use another directory")

    def _key(self) -> bytes:
        """Return the key, which the first caller makes."""
        with suppress(FileNotFoundError):
            key = read_file(self.top, "key", KEY_BYTES + 1)
            if len(key) == KEY_BYTES:
                return key
            raise UnusablePath(f"{self.path}/key has {len(key)} bytes, not {KEY_BYTES}: restore it from a backup")
        if os.listdir(self.complete):
            raise UnusablePath(f"{self.path}/key is missing: restore it from a backup; without it no image can be checked")
        key = os.urandom(KEY_BYTES)
        self.replace("key", key)
        return key

    def replace(self, name: str, data: bytes) -> None:
        """Write a file of the directory itself: the old content or the new one is there.  The lock is held.  Raise OSError."""
        write_file(self.top, f"{name}-new", data)
        os.rename(f"{name}-new", name, src_dir_fd=self.top, dst_dir_fd=self.top)
        os.fsync(self.top)

    def limits(self) -> Limits:
        """Return what the user allows.  Raise UnusablePath if the file cannot be read as limits."""
        try:
            return msgspec.json.decode(read_file(self.top, "limits", _MOST_LIMITS_BYTES), type=Limits)
        except FileNotFoundError:
            return Limits()
        except (msgspec.MsgspecError, UnicodeDecodeError, ImageDamaged) as exc:
            raise UnusablePath(f"{self.path}/limits: {exc}: set the limits again, or remove the file") from None

    def failures(self) -> Failures:
        with suppress(FileNotFoundError, ImageDamaged, msgspec.MsgspecError, UnicodeDecodeError):
            return msgspec.json.decode(read_file(self.top, "failures", _MOST_LIMITS_BYTES), type=Failures)
        return Failures()

    def note_failure(self, why: str) -> None:
        """Count an image that failed.  Raise OSError."""
        with self.locked():
            failures = Failures(self.failures().count + 1, time.time(), why[:_MOST_WHY])
            self.replace("failures", msgspec.json.encode(failures))

    def bad_places(self) -> frozenset[BlockPlace]:
        """Return the places where `verify` found damage."""
        with suppress(FileNotFoundError, ImageDamaged, struct.error):  # without it, more blocks are shared
            return frozenset(read_places(read_file(self.top, "bad", MOST_MANIFEST_BYTES)))
        return frozenset()

    def note_bad(self, places: Iterable[BlockPlace]) -> None:
        """Let later images not share these blocks.  Raise OSError."""
        with self.locked():
            before = self.bad_places()
            if fresh := set(places) - before:
                self.replace("bad", write_places([*before, *fresh]))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the directory's lock.  Raise UnusablePath if others hold it for LOCK_SECONDS."""
        descriptor = os.open("lock", os.O_RDWR | os.O_CREAT | _OPEN_FLAGS, 0o600, dir_fd=self.top)
        try:
            deadline = time.monotonic() + LOCK_SECONDS
            while not try_lock(descriptor):
                if time.monotonic() > deadline:
                    raise UnusablePath(f"{self.path}/lock: another process has held it for {LOCK_SECONDS:.0f} s")
                time.sleep(_POLL_SECONDS)
            yield
        finally:
            os.close(descriptor)

    def names(self) -> list[str]:
        """Return the names of the complete images."""
        return sorted(os.listdir(self.complete))

    def manifest_bytes(self) -> int:
        """Return the size of all manifests."""
        size = 0
        for name in self.names():
            with suppress(FileNotFoundError):  # removed in between
                size += os.stat(name, dir_fd=self.complete, follow_symlinks=False).st_size
        return size

    def read(self, name: str) -> Manifest:
        """Raise NoSuchImage or ImageDamaged."""
        found = self._open(name)
        try:
            return self._decode(name, found)
        finally:
            os.close(found)

    def hold(self, name: str) -> Held:
        """Read a manifest, and keep its blocks until the descriptor is closed.  The lock is held.  Raise as `read`."""
        found = self._open(name)
        try:
            fcntl.flock(found, fcntl.LOCK_SH)  # never waits: the only exclusive lock is taken under the directory's lock
            return Held(self._decode(name, found), found)
        except BaseException:
            os.close(found)
            raise

    def _open(self, name: str) -> int:
        check_name(name)
        try:
            return os.open(name, os.O_RDONLY | _OPEN_FLAGS, dir_fd=self.complete)
        except FileNotFoundError:
            raise NoSuchImage(f"there is no image {name} in {self.path}") from None

    def _decode(self, name: str, descriptor: int) -> Manifest:
        try:
            found = decode(read_descriptor(descriptor, MOST_MANIFEST_BYTES), self.hash_of)
        except ImageDamaged as exc:
            raise ImageDamaged(f"image {name}: {exc}") from None
        if found.name != name:
            raise ImageDamaged(f"image {name}: its manifest is that of image {found.name}")
        return found

    def remove(self, name: str) -> None:
        """Let an image be no more; `collect` frees its blocks.  Raise NoSuchImage."""
        check_name(name)
        with self.locked():
            try:
                place = f"{name}.{os.urandom(8).hex()}"
                os.rename(name, place, src_dir_fd=self.complete, dst_dir_fd=self.removed)
            except FileNotFoundError:
                raise NoSuchImage(f"there is no image {name} in {self.path}") from None
            os.fsync(self.removed)
            os.fsync(self.complete)

    def removed_in_use(self) -> list[Manifest]:
        """Return the removed images that a process still uses; forget the others.  The lock is held."""
        used = []
        for name in os.listdir(self.removed):
            found = os.open(name, os.O_RDWR | _OPEN_FLAGS, dir_fd=self.removed)  # NFS locks only what could be written
            try:
                if try_lock(found):
                    os.unlink(name, dir_fd=self.removed)
                else:
                    used.append(decode(read_descriptor(found, MOST_MANIFEST_BYTES), self.hash_of))
            finally:
                os.close(found)
        return used

    def write_manifest(self, manifest: Manifest, room_bytes: float) -> None:
        """Write what `publish` then makes an image of.  The lock is held.  Raise BadRequest, NoRoom or OSError.

        room_bytes: what the quota leaves for it.
        """
        check_free(self, manifest.name)
        data = encode(manifest, self.hash_of)
        if len(data) > room_bytes:
            raise NoRoom(f"the quota for images has no room for the image's manifest of {len(data)} bytes: remove some")
        try:
            write_file(self.top, MANIFEST_IN_WORK, data)
        except OSError as exc:
            raise explained(exc) from None

    def publish(self, name: str) -> None:
        """Let an image be complete: its blocks are on the disk.  The lock is held.  Raise OSError: it does not exist then."""
        try:
            os.rename(MANIFEST_IN_WORK, name, src_dir_fd=self.top, dst_dir_fd=self.complete)
            os.fsync(self.complete)
        except BaseException:
            with suppress(OSError):
                os.unlink(name, dir_fd=self.complete)  # it was free before
            raise

    def sync_packs(self) -> None:
        """Wait until the disk has the names of all packs.  Raise NoRoom or OSError."""
        try:
            os.fsync(self.packs)
        except OSError as exc:
            raise explained(exc) from None

    def stored_bytes(self) -> int:
        """Return the disk space of all packs and manifests."""
        folders = self.packs, self.complete, self.removed
        return sum(_disk_bytes(folder, name) for folder in folders for name in os.listdir(folder))


def _check_exists(path: Path) -> None:
    """Raise BadRequest if the path leads to no directory of images and to no empty one.  Raise OSError."""
    if not path.is_dir():
        raise BadRequest(f"{path} is no directory: no image was taken there; name another with --directory")
    if (names := {*os.listdir(path)} - {"lost+found"}) and _FIRST_FILES.isdisjoint(names):  # a new file system has this one
        raise BadRequest(f"{path} has other files and no images: name another with --directory")


def try_lock(descriptor: int) -> bool:
    """Take the exclusive flock if no other open file has one."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _disk_bytes(directory: int, name: str) -> int:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False).st_blocks * 512
    except FileNotFoundError:
        return 0  # another process has removed it in between


def read_file(directory: int, name: str, most: int) -> bytes:
    found = os.open(name, os.O_RDONLY | _OPEN_FLAGS, dir_fd=directory)
    try:
        return read_descriptor(found, most)
    finally:
        os.close(found)


def read_descriptor(descriptor: int, most: int) -> bytes:
    """Return the file's bytes.  Raise ImageDamaged if it is not a regular file, or is larger than `most`."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_size > most:
        raise ImageDamaged("its manifest is no file of a manifest's size")
    data = bytearray()
    while piece := os.pread(descriptor, min(found.st_size - len(data), 1 << 30), len(data)):
        data += piece
    return bytes(data)


def write_file(directory: int, name: str, data: bytes) -> None:
    """Write a file and wait until the disk has it.  Raise OSError."""
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _OPEN_FLAGS, 0o600, dir_fd=directory)
    try:
        at = 0
        while at < len(data):
            at += os.write(descriptor, memoryview(data)[at:])
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_free(directory: ImageDirectory, name: str) -> None:
    """Raise BadRequest if an image has the name."""
    with suppress(FileNotFoundError):
        os.stat(name, dir_fd=directory.complete, follow_symlinks=False)
        raise BadRequest(f"an image has the name {name} already: choose another, or remove that one")


def explained(error: OSError) -> Exception:
    """Return NoRoom if the disk, or the user's quota of the file system, is full; else the error itself."""
    return NoRoom("the disk of the images is full") if error.errno in (errno.ENOSPC, errno.EDQUOT) else error
