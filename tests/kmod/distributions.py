"""The distributions in which the module is tried: the kernel of each and the driver source that it ships, in a separate root.

A root holds the tools of the build (the distribution's compiler, headers, driver source) and an unpacked kernel to boot. It is
made once, by mmdebstrap, and kept in the cache, `MPSD_KMOD_CACHE` or ~/.cache/mpsd-kmod.
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
PACKAGES = "make,gcc,libc6-dev,linux-headers-amd64,coccinelle,xz-utils,kmod,bc"
DRIVER_PACKAGE = "nvidia-open-kernel-source"
DEBUG_PACKAGES = "linux-source-6.1,flex,bison,libelf-dev"
DEBUG_CONFIG = Path(__file__).with_name("debug.config")
KERNEL_DIRECTORY = "opt/kernel"  # in the root: unpacked, never installed, so that nothing tries to make it bootable
SOURCE_TARBALL = "usr/src/nvidia-open-kernel.tar.xz"
# mmdebstrap runs one of these with the new root as $1; what they leave is a kernel in KERNEL_DIRECTORY, its name in `release`.
FETCH_KERNEL = f"""
set -e
headers=$(basename "$(echo "$1"/usr/src/linux-headers-*-amd64)")
release=${{headers#linux-headers-}}
chroot "$1" sh -c "cd /opt && apt-get download linux-image-$release"
dpkg-deb -x "$1"/opt/linux-image-*.deb "$1/{KERNEL_DIRECTORY}"
rm "$1"/opt/linux-image-*.deb
[ -e "$1/{KERNEL_DIRECTORY}/lib" ] || ln -s usr/lib "$1/{KERNEL_DIRECTORY}/lib"
depmod -b "$1/{KERNEL_DIRECTORY}" "$release"
echo "$release" >"$1/{KERNEL_DIRECTORY}/release"
"""
COMPILE_KERNEL = f"""
set -e
chroot "$1" sh -e -c '
	cd /opt && tar -xf /usr/src/linux-source-*.tar.xz && mv linux-source-* linux && cd linux
	make -s tinyconfig && scripts/kconfig/merge_config.sh -m .config /opt/debug.config && make -s olddefconfig
	make -s -j"$(nproc)" bzImage modules_prepare && cp vmlinux.symvers Module.symvers
	release=$(make -s kernelrelease)
	mkdir -p /{KERNEL_DIRECTORY}/boot "/lib/modules/$release"
	mv arch/x86/boot/bzImage "/{KERNEL_DIRECTORY}/boot/vmlinuz-$release"
	ln -s /opt/linux "/lib/modules/$release/build"
	find . -name "*.o" -not -path "./scripts/*" -not -path "./tools/*" -delete
	rm -f vmlinux
	echo "$release" >/{KERNEL_DIRECTORY}/release'
"""
LEAVE_OUT = [f"--dpkgopt=path-exclude=/usr/share/{each}/*" for each in ("doc", "man", "locale", "info")]


@dataclass(frozen=True, slots=True)
class Distribution:
    """name: in test ids. kernel: the beginning of its version; with another one the case fails.

    has_driver: it ships the source of an open driver.
    is_debug: not its own kernel but a small one of its sources, with KASAN and lockdep (debug.config), compiled in the root.
    """

    name: str
    suite: str
    kernel: str
    has_driver: bool = True
    is_debug: bool = False

    @property
    def packages(self) -> str:
        wanted = [PACKAGES, DRIVER_PACKAGE if self.has_driver else "", DEBUG_PACKAGES if self.is_debug else ""]
        return ",".join(each for each in wanted if each)

    @property
    def hooks(self) -> list[str]:
        """What mmdebstrap is to do at the end."""
        return [f"copy-in {DEBUG_CONFIG} /opt", COMPILE_KERNEL] if self.is_debug else [FETCH_KERNEL]

    @property
    def recipe(self) -> str:
        """A hash of what makes the root what it is."""
        config = DEBUG_CONFIG.read_text() if self.is_debug else ""
        return hashlib.sha256("\n".join([self.packages, *self.hooks[-1:], config, *LEAVE_OUT]).encode()).hexdigest()[:12]


DEBIAN11 = Distribution("debian11", "bullseye", "5.10.", has_driver=False)  # the oldest kernel that kmod/README.md names
DEBIAN12 = Distribution("debian12", "bookworm", "6.1.")
DEBIAN13 = Distribution("debian13", "trixie", "6.12.")
DEBUG = Distribution("debug", "bookworm", "6.1.", is_debug=True)


class Unavailable(Exception):
    """This machine cannot run the suite; the text has the reason."""


@dataclass(frozen=True, slots=True)
class Root:
    """A distribution unpacked at `path`."""

    distribution: Distribution
    path: Path

    @property
    def kernel_release(self) -> str:
        return (self.path / KERNEL_DIRECTORY / "release").read_text().strip()

    @property
    def kernel_image(self) -> Path:
        return self.path / KERNEL_DIRECTORY / f"boot/vmlinuz-{self.kernel_release}"

    def run(self, *argv: str, log: Path, environment: dict[str, str] | None = None) -> None:
        """Run a command inside, with its output in `log`. CalledProcessError, with the log's end, if it fails."""
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
    """One process at a time may fill what is called so in the cache."""
    with (cache_directory() / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def once(place: Path, make: Callable[[Path], None]) -> Path:
    """Return `place`, filled by `make` if it does not exist: completely or not at all, even if interrupted."""
    with locked(f"{place.parent.name}-{place.name}".rpartition("-")[0]):  # without the hash at its end
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
    """Return the distribution's root, made now if the cache has none. Unavailable: it cannot be made here."""
    place = cache_directory() / "roots" / f"{distribution.name}-{distribution.recipe}"
    if not place.exists():
        if missing := [each for each in TOOLS if not shutil.which(each)]:
            raise Unavailable(f"no {', '.join(missing)}: run tests/kmod/setup as root")
        if os.geteuid() != 0:
            raise Unavailable("needs uid 0 to make a root and to build in it")
    return Root(distribution, once(place, lambda half: bootstrap(distribution, half)))


def bootstrap(distribution: Distribution, target: Path) -> None:
    """80 to 120 seconds, most of them downloads; a debug kernel takes ten minutes more."""
    suite = distribution.suite
    sources = [
        f"deb http://deb.debian.org/debian {suite} main contrib",
        f"deb http://deb.debian.org/debian {suite}-updates main contrib",
        f"deb http://deb.debian.org/debian-security {suite}-security main contrib",
    ]
    argv = ["mmdebstrap", "--variant=apt", "--mode=root", f"--include={distribution.packages}", *LEAVE_OUT]
    argv += ['--aptopt=Apt::Install-Recommends "false"', *(f"--customize-hook={each}" for each in distribution.hooks)]
    argv += [suite, str(target), "-"]
    environment = {**os.environ, "INITRD": "No"}  # Debian 13's headers install its kernel too: nothing boots that one
    done = subprocess.run(argv, input="\n".join(sources) + "\n", capture_output=True, text=True, env=environment)
    if done.returncode:
        raise Unavailable(f"{suite} could not be fetched: {done.stderr.strip().splitlines()[-1:]}")
