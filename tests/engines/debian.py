"""A clean Debian in namespaces of its own, to install the package in; what it changes is in memory, and goes with it."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.host import Host
from tests.integration.machine import CLIENTS, PROGRAM
from tests.kmod.distributions import Unavailable, cache_directory, once

SUITE, RELEASE = "bookworm", "debian12"
INSTALLED_SIMULATOR = "/opt/mpsd/venv/lib/mpsd/sim/lib"
VENDOR = "#!/bin/sh\necho the vendor's\n"
SET_UP = """\
mount --make-rprivate /
mount -t tmpfs none {place}
mkdir {place}/upper {place}/work {place}/root
mount -t overlay overlay -o lowerdir={lower},upperdir={place}/upper,workdir={place}/work {place}/root
cd {place}/root
mount --rbind /dev dev
mount -t proc proc proc
mkdir -p mnt/dist .{clients} etc/mpsd
mount --bind {dist} mnt/dist
mount --bind {clients} .{clients}
printf '%s' "{vendor}" > usr/bin/{program}
chmod 755 usr/bin/{program}
exec chroot . sh -c 'echo ready; exec sleep 86400'
"""


def bootstrap() -> Path:
    """Return a minimal Debian with Python, from the cache if it is there. Unavailable: it cannot be made here."""
    place = cache_directory() / "roots" / f"clean-{RELEASE}"
    if not place.exists() and (missing := [each for each in ("mmdebstrap", "dpkg-deb") if not shutil.which(each)]):
        raise Unavailable(f"no {', '.join(missing)}: apt-get install mmdebstrap dpkg")
    return once(place, _fill)


def _fill(target: Path) -> None:
    argv = ["mmdebstrap", "--variant=apt", "--mode=root", "--include=python3", '--aptopt=Apt::Install-Recommends "false"']
    argv += ["--dpkgopt=path-exclude=/usr/share/doc/*", SUITE, str(target), "http://deb.debian.org/debian"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"{SUITE} could not be fetched: {done.stderr.strip().splitlines()[-1:]}")


@contextmanager
def open_debian(lower: Path, dist: Path) -> Iterator[Host]:
    """Yield a Debian on `lower` with a program of the vendor's; the packages are in /mnt/dist. Unavailable: not here."""
    place = Path(tempfile.mkdtemp(prefix="mpsd-debian-"))
    (place / "over").mkdir()
    words = {"place": place / "over", "lower": lower, "dist": dist, "clients": CLIENTS, "program": PROGRAM, "vendor": VENDOR}
    host = Host(place, SET_UP.format(**words))
    try:
        if host.trouble:
            raise Unavailable(f"no namespaces of our own: {host.trouble}")
        host.file("/etc/mpsd.toml").write_text('backend = "sim"\n')
        yield host
    finally:
        host.clear()


def why_not() -> str:
    """Return why no Debian can be had here; empty: it can."""
    if os.geteuid() != 0:
        return "needs uid 0"
    here = Path("/etc/os-release").read_text()
    return "" if "VERSION_CODENAME=bookworm" in here else f"the package is built for this machine's release, not for {SUITE}"
