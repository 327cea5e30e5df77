"""Check descriptors of other users: GPU memory, a layout, a state.  None is mapped: its owner may truncate the file."""

import fcntl
import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from mpsd.errors import BadRequest
from mpsd.host.syscalls import device_number, device_of, type_of
from mpsd.model.arena import MOST_LAYOUT_BYTES
from mpsd.wire.forward_state import HEAD, parse_head

CONTROL_DEVICE = "/dev/nvidiactl"
_CHUNK_BYTES = 1 << 20
_BLOCK_BYTES = 512  # st_blocks, on every file system
_HUGE_PAGE = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
_TICKET_BYTES = 64  # the simulator writes at most 21
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
_STATE_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

CheckMemory = Callable[[int], None]  # raises BadRequest


class Layout(Struct, frozen=True):
    """A layout; it owns a sealed memory file."""

    descriptor: int
    hash: str
    bytes: int


def check_exported(descriptor: int) -> None:
    """Check that it is another opening of /dev/nvidiactl, as cuMemExportToShareableHandle gives.  Raise BadRequest."""
    try:
        wanted = device_number(CONTROL_DEVICE)
    except OSError as exc:
        raise BadRequest(f"this machine has no {CONTROL_DEVICE}, so no descriptor can be GPU memory: {exc.strerror}") from None
    found = device_of(descriptor)
    if not stat.S_ISCHR(found[0]) or found != wanted:
        raise BadRequest(f"a descriptor is not exported GPU memory: it is {_kind(found[0])}, and not {CONTROL_DEVICE}")


def check_simulated(descriptor: int) -> None:
    """Check that it is a sealed memory file with a block's number, as the simulator exports (native/sim/machine/tickets.c).

    A larger file, or one that may grow, would be host memory that no quota counts.  Raise BadRequest.
    """
    if not _is_memory_file(descriptor):
        kind = _kind(type_of(descriptor))
        raise BadRequest(f"a descriptor is not simulated GPU memory: it is {kind}, and not a memory file")
    if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
        raise BadRequest("a descriptor is not simulated GPU memory: it is a memory file that can still change")
    found = os.fstat(descriptor)
    if found.st_size > _TICKET_BYTES:
        raise BadRequest(f"a descriptor is not simulated GPU memory: it is a memory file of {found.st_size} bytes")
    _check_memory(found)


def read_layout(descriptor: int) -> Layout:
    """Return a sealed copy of a user's memory file.  Blocks for milliseconds.  Raise BadRequest."""
    if not _is_memory_file(descriptor):
        raise BadRequest("a layout comes in a memory file (memfd_create)")
    size = os.fstat(descriptor).st_size
    if not 0 < size <= MOST_LAYOUT_BYTES:
        raise BadRequest(f"a layout of {size} bytes; accepted: 1 to {MOST_LAYOUT_BYTES}")
    digest = hashlib.sha256()
    copy = os.memfd_create("mpsd-layout", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        at = 0
        while at < size:
            part = os.pread(descriptor, min(_CHUNK_BYTES, size - at), at)
            if not part:
                raise BadRequest(f"a layout of {size} bytes became shorter while it was read")
            written = os.write(copy, part)
            digest.update(part[:written])
            at += written
        fcntl.fcntl(copy, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(copy)
        raise
    return Layout(copy, digest.hexdigest(), size)


def check_state(descriptor: int, generation: int, may_be_older: bool = False) -> int:
    """Check a user's forward state, which the writer of this generation made and its readers can map; return its bytes.

    may_be_older: it may be of an earlier generation.  Blocks while its page comes from swap.  Raise BadRequest.
    """
    if not _is_memory_file(descriptor):
        raise BadRequest("a forward state comes in a memory file, as mpsd_state_create makes it")
    if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _STATE_SEALS != _STATE_SEALS:
        raise BadRequest("a forward state is sealed: it cannot shrink or grow, and its seals stay")
    if os.fstatvfs(descriptor).f_bsize != os.sysconf("SC_PAGESIZE"):
        raise BadRequest("a forward state is not in huge pages: those can be taken away from its readers")
    head = parse_head(os.pread(descriptor, HEAD.size, 0))
    if head.generation != generation and not (may_be_older and 0 < head.generation < generation):
        raise BadRequest(f"a forward state of generation {generation} is wanted; found: {head.generation}")
    found = os.fstat(descriptor)
    if found.st_size != head.file_bytes:
        raise BadRequest(f"a forward state has {found.st_size} bytes, and its head gives {head.file_bytes}")
    _check_memory(found)
    return found.st_size


def generation_of_state(descriptor: int) -> int:
    """Return the generation in which it was made.  Blocks while its page comes from swap.

    Raise BadRequest if its owner has damaged it since it was checked.
    """
    return parse_head(os.pread(descriptor, HEAD.size, 0)).generation


def _check_memory(found: os.stat_result) -> None:
    """Refuse a sealed memory file with memory beyond its end, which fallocate(2) can add before.  Raise BadRequest."""
    memory = found.st_blocks * _BLOCK_BYTES
    if memory > found.st_size + _huge_page_bytes():
        raise BadRequest(f"a memory file of {found.st_size} bytes takes {memory} bytes of memory")


def _huge_page_bytes() -> int:
    """Return the size of the page that the kernel may use for a small memory file."""
    try:
        return int(_HUGE_PAGE.read_text())
    except (OSError, ValueError):  # a kernel without huge pages
        return os.sysconf("SC_PAGESIZE")


def _is_memory_file(descriptor: int) -> bool:
    """Return whether it is a memory file: only those have seals, and reading one waits for no process of its owner."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        return False
    return True


def _kind(mode: int) -> str:
    kinds = {stat.S_IFREG: "a file", stat.S_IFSOCK: "a socket", stat.S_IFIFO: "a pipe", stat.S_IFDIR: "a directory"}
    return kinds.get(stat.S_IFMT(mode), "another device" if stat.S_ISCHR(mode) else "something else")
