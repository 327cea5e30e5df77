"""Where the module is tried: a distribution's kernel and the driver source that it ships, in a root of its own.

A root holds what the build needs (the distribution's compiler, headers, driver source) and an unpacked kernel to boot.  It is
made once, by mmdebstrap, and kept in the cache; `MPSD_KMOD_CACHE` says where, else ~/.cache/mpsd-kmod.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

TOOLS = ("mmdebstrap", "qemu-system-x86_64", "busybox", "cpio", "zstd", "xz", "depmod")  # tests/kmod/setup installs them
PACKAGES = "make,gcc,libc6-dev,linux-headers-amd64,nvidia-open-kernel-source,coccinelle,xz-utils,kmod,bc"
KERNEL_DIRECTORY = "opt/kernel"  # in the root: unpacked, never installed, so that nothing tries to make it bootable
SOURCE_TARBALL = "usr/src/nvidia-open-kernel.tar.xz"
FETCH_KERNEL = f"""
set -e
headers=$(basename "$(echo "$1"/usr/src/linux-headers-*-amd64)")
chroot "$1" sh -c "cd /opt && apt-get download linux-image-${{headers#linux-headers-}}"
dpkg-deb -x "$1"/opt/linux-image-*.deb "$1/{KERNEL_DIRECTORY}"
rm "$1"/opt/linux-image-*.deb
[ -e "$1/{KERNEL_DIRECTORY}/lib" ] || ln -s usr/lib "$1/{KERNEL_DIRECTORY}/lib"
depmod -b "$1/{KERNEL_DIRECTORY}" "${{headers#linux-headers-}}"
"""
LEAVE_OUT = [f"--dpkgopt=path-exclude=/usr/share/{each}/*" for each in ("doc", "man", "locale", "info")]


@dataclass(frozen=True, slots=True)
class Distribution:
    """name: in test ids.  kernel, driver: how their versions begin; another one is a failure, not a surprise."""

    name: str
    suite: str
    kernel: str
    driver: str


DISTRIBUTIONS = (
    Distribution("debian12", "bookworm", "6.1.", "535."),
    Distribution("debian13", "trixie", "6.12.", "550."),
)


class Unavailable(Exception):
    """This machine cannot run the suite; the text says why."""


@dataclass(frozen=True, slots=True)
class Root:
    """A distribution unpacked at `path`."""

    distribution: Distribution
    path: Path

    @property
    def kernel_release(self) -> str:
        (headers,) = (self.path / "usr/src").glob("linux-headers-*-amd64")
        return headers.name.removeprefix("linux-headers-")

    @property
    def kernel_image(self) -> Path:
        return self.path / KERNEL_DIRECTORY / f"boot/vmlinuz-{self.kernel_release}"

    def run(self, *argv: str, log: Path, environment: dict[str, str] | None = None) -> None:
        """Run a command inside; what it says goes to `log`.  CalledProcessError, with the log's end, where it fails."""
        inside = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "HOME": "/root", **(environment or {})}
        with log.open("ab") as out:
            done = subprocess.run(["chroot", self.path, *argv], stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=inside)
        if done.returncode:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-40:])
            raise AssertionError(f"{' '.join(argv)}: exit status {done.returncode}; {log} ends:\n{tail}")


def cache_directory() -> Path:
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mpsd-kmod"
    made = Path(os.environ.get("MPSD_KMOD_CACHE") or default)
    made.mkdir(parents=True, exist_ok=True)
    return made


@contextmanager
def locked(name: str) -> Iterator[None]:
    """One process at a time may fill a place of the cache."""
    with (cache_directory() / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def once(place: Path, make: Callable[[Path], None]) -> Path:
    """`place`, filled by `make` if it is not there: whole or not at all, whatever interrupts it."""
    with locked(place.name):
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            half = Path(tempfile.mkdtemp(prefix=f"{place.name}.half-", dir=place.parent))
            half.chmod(0o755)
            try:
                make(half)
            except BaseException:
                shutil.rmtree(half, ignore_errors=True)
                raise
            half.rename(place)
    return place


def root_of(distribution: Distribution) -> Root:
    """The distribution's root, made now if the cache has none.  Unavailable: it cannot be made here."""
    recipe = hashlib.sha256("\n".join([PACKAGES, FETCH_KERNEL, *LEAVE_OUT]).encode()).hexdigest()[:12]
    place = cache_directory() / "roots" / f"{distribution.suite}-{recipe}"
    if not place.exists():
        if missing := [each for each in TOOLS if not shutil.which(each)]:
            raise Unavailable(f"no {', '.join(missing)}: run tests/kmod/setup as root")
        if os.geteuid() != 0:
            raise Unavailable("needs uid 0 to make a root and to build in it")
    return Root(distribution, once(place, lambda half: bootstrap(distribution, half)))


def bootstrap(distribution: Distribution, target: Path) -> None:
    """80 to 120 seconds, most of them downloads."""
    suite = distribution.suite
    sources = [
        f"deb http://deb.debian.org/debian {suite} main contrib",
        f"deb http://deb.debian.org/debian {suite}-updates main contrib",
        f"deb http://deb.debian.org/debian-security {suite}-security main contrib",
    ]
    argv = ["mmdebstrap", "--variant=apt", "--mode=root", f"--include={PACKAGES}", *LEAVE_OUT]
    argv += ['--aptopt=Apt::Install-Recommends "false"', f"--customize-hook={FETCH_KERNEL}", suite, str(target), "-"]
    done = subprocess.run(argv, input="\n".join(sources) + "\n", capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(f"{suite} could not be fetched: {done.stderr.strip().splitlines()[-1:]}")
