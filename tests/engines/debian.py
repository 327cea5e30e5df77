"""A Debian that never had mpsd, in namespaces of its own, to build the package in and to install it in.

The kernel module is built in the same ones (tests/kmod/distributions.py): a minimal system and a compiler.  A test changes only
memory, which goes with the test.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.host import Host
from tests.integration.machine import CLIENTS, PROGRAM, ROOT
from tests.kmod.distributions import Unavailable

INSTALLED_SIMULATOR = "/opt/mpsd/venv/lib/mpsd/sim/lib"
BUILD = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "HOME": "/root"}
VENDOR = "#!/bin/sh\necho the vendor's\n"
SET_UP = """\
mount --make-rprivate /
mount -t tmpfs none {place}
mkdir {place}/upper {place}/work {place}/root {place}/changed {place}/work-of-changed
mount -t overlay overlay -o lowerdir={lower},upperdir={place}/upper,workdir={place}/work {place}/root
cd {place}/root
mount --rbind /dev dev
mount -t proc proc proc
mkdir -p mnt/dist mnt/source .{clients} etc/mpsd
mount --bind {dist} mnt/dist
mount -t overlay overlay -o lowerdir={source},upperdir={place}/changed,workdir={place}/work-of-changed mnt/source
mount --bind {clients} .{clients}
printf '%s' "{vendor}" > usr/bin/{program}
chmod 755 usr/bin/{program}
exec chroot . sh -c 'echo ready; exec sleep 86400'
"""


@contextmanager
def open_debian(lower: Path, dist: Path) -> Iterator[Host]:
    """Yield a Debian on `lower` with a program of the vendor's; /mnt/dist has the packages, /mnt/source a copy of these
    sources. Unavailable: not here."""
    place = Path(tempfile.mkdtemp(prefix="mpsd-debian-"))
    (place / "over").mkdir()
    words = {"place": place / "over", "lower": lower, "dist": dist, "source": ROOT, "clients": CLIENTS, "program": PROGRAM}
    words["vendor"] = VENDOR
    host = Host(place, SET_UP.format(**words))
    try:
        if host.trouble:
            raise Unavailable(f"no namespaces of our own: {host.trouble}")
        host.file("/etc/mpsd.toml").write_text('backend = "sim"\n')
        yield host
    finally:
        host.clear()


def build_package(lower: Path, dist: Path) -> Path:
    """Return the package that `make deb` builds in that release of the wheels in `dist`. Unavailable: not here."""
    python = (lower / "usr/bin/python3").readlink().name.removeprefix("python")
    fetch = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "download", "--only-binary=:all:"]
    pinned = ["--no-deps", "--require-hashes", "-r", ROOT / "constraints.txt"]
    needs = ["--python-version", python, "-d", dist / f"needs-{python}", *pinned]
    done = subprocess.run([*fetch, *needs], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    with open_debian(lower, dist) as debian:
        debian.file("/etc/resolv.conf").write_bytes(Path("/etc/resolv.conf").read_bytes())
        install = "apt-get install -q -y --no-install-recommends python3-venv"
        done = debian.shell(f"apt-get update -q && {install}", environment=BUILD, seconds=200)
        if done.returncode != 0:
            raise Unavailable(f"no python3-venv of {lower.name}: {done.stderr[-500:]}")
        local = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": f"/mnt/dist/needs-{python}"}
        words = ["make", "-C", "/mnt/source", "deb", "DIST=/mnt/dist"]
        done = debian.run(*words, environment=BUILD | local, seconds=200)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return next(dist.glob("mpsd_*~*.deb"))
