"""A Debian 12 that never had mpsd, in namespaces of its own, to install the package in.

It is the one that builds the kernel module (tests/kmod/distributions.py): a minimal system and a compiler.  What a test changes
is in memory, and goes with the test.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.host import Host
from tests.integration.machine import CLIENTS, PROGRAM
from tests.kmod.distributions import DEBIAN12, Unavailable

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
    has_same = f"VERSION_CODENAME={DEBIAN12.suite}" in here
    return "" if has_same else f"the package is built for this machine's release, not for {DEBIAN12.name}"
