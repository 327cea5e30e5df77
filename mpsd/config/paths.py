"""Where things are on this machine: mpsd's state, its own C programs, the vendor's control program.

Reads only.  If a configured place is wrong, that is an error; mpsd does not then look elsewhere.
"""

import hashlib
import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from mpsd.config.options import STATE_DIRECTORY_BYTES, Config
from mpsd.errors import UnusablePath, VendorFailed
from mpsd.fairness.uid_ranges import NO_RANGES, UidRanges
from mpsd.fairness.uid_ranges import parse as parse_uid_ranges
from mpsd.host.mounts import place_of
from mpsd.host.programs import native_directory

PROGRAM = "nvidia-cuda-mps-control"
MARKER = b"mpsd-front-end"  # clients/control/main.c carries it, so that mpsd never drives its own front end
SEARCHED = (
    f"/usr/lib/mpsd/vendor/{PROGRAM}",
    f"/usr/bin/{PROGRAM}.vendor",  # `make install` moves the vendor's program there, and dpkg-divert keeps it
)
SUBORDINATE_UIDS = Path("/etc/subuid")  # subuid(5)
_SUBORDINATE_BYTES = 1 << 20
FOLDERS = ("/usr/bin", "/usr/local/nvidia/bin")  # after those of PATH
_HASH_CHARACTERS = 10  # the name only has to differ between the pipe directories of one machine


def state_directory(config: Config, euid: int, environ: Mapping[str, str]) -> Path:
    """Return where this daemon keeps domains, store and keeper: one directory per pipe directory and user.

    Raises UnusablePath when sockets below it would have names too long for the kernel.
    """
    place = Path(config.state_directory) if config.state_directory else _default_state_directory(config, euid, environ)
    if len(os.fsencode(place)) > STATE_DIRECTORY_BYTES:
        found = f"{len(os.fsencode(place))} bytes; at most {STATE_DIRECTORY_BYTES} leave room for the sockets below it"
        raise UnusablePath(f"state directory {place}: {found}")
    return place


def subordinate_uids(path: Path = SUBORDINATE_UIDS) -> UidRanges:
    """Return the ranges that the administrator granted; none if the file does not exist, or cannot be read."""
    try:
        with path.open("rb") as file:
            return parse_uid_ranges(file.read(_SUBORDINATE_BYTES).decode(errors="replace"))
    except OSError:
        return NO_RANGES


def _default_state_directory(config: Config, euid: int, environ: Mapping[str, str]) -> Path:
    name = hashlib.sha256(place_of(config.pipe_directory)).hexdigest()[:_HASH_CHARACTERS]
    if euid == 0:
        return Path("/run/mpsd", name)
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    return Path(runtime, "mpsd", name) if os.path.isdir(runtime) else Path(f"/tmp/mpsd-{euid}", name)


def nvml_library(config: Config) -> Path | None:
    """Return the library to load instead of NVML; None for the driver's own."""
    return native_directory() / "sim" / "lib" / "libnvidia-ml.so.1" if config.backend == "sim" else None


def find_vendor_control(config: Config, environ: Mapping[str, str]) -> Path:
    """Return the vendor's control program, or the simulator's if that is the backend.

    Raises VendorFailed, whose message lists the places searched.
    """
    absent: list[str] = []
    unfit: list[str] = []
    for candidate in _vendor_candidates(config, environ):
        if not os.path.lexists(candidate):
            absent.append(candidate.removesuffix(f"/{PROGRAM}"))
        elif trouble := _why_not(candidate):
            unfit.append(f"{candidate} is {trouble}")
        else:
            return Path(candidate)
    looked = unfit + ([f"not there: {', '.join(absent)}"] if absent else [])
    raise VendorFailed(f"the vendor's {PROGRAM} was not found; " + "; ".join(looked))


def _vendor_candidates(config: Config, environ: Mapping[str, str]) -> Iterator[str]:
    if config.vendor.control:
        yield config.vendor.control
    elif config.backend == "sim":
        yield str(native_directory() / "sim" / "bin" / PROGRAM)
    else:
        yield from SEARCHED
        path = [folder for folder in environ.get("PATH", "").split(":") if folder.startswith("/")]
        yield from dict.fromkeys(f"{folder}/{PROGRAM}" for folder in (*path, *FOLDERS))


def _why_not(candidate: str) -> str:
    """Return why mpsd may not drive this program; empty if it may."""
    if not os.path.isfile(candidate):
        return "no regular file"
    try:
        with open(candidate, "rb") as file:
            if _has_marker(file.fileno()):
                return "mpsd's own front end"
    except OSError as exc:
        return f"unreadable: {exc.strerror}"
    return "" if os.access(candidate, os.X_OK) else "not executable"


def _has_marker(descriptor: int) -> bool:
    if os.fstat(descriptor).st_size == 0:
        return False
    with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as content:
        return content.find(MARKER) >= 0
