"""`make tree`: mpsd with its own Python, in a container that has a C library and no more, as distroless images do."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.machine import CLIENTS, PROGRAM, ROOT

pytestmark = [pytest.mark.root, pytest.mark.deadline(300)]
GLIBC = ("ld-linux-x86-64.so.2", "libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1")
SIMULATOR = "/opt/mpsd/venv/lib/mpsd/sim/lib"
VARIABLES = f"MPSD_CONFIG=/etc/mpsd.toml MPSD_SIM_FAST=1 LD_LIBRARY_PATH={SIMULATOR}"
# The host's program is mounted into every container of NVIDIA's toolkit; its directory has to be, too.
SET_UP = """\
set -e
mount --bind {place}/host/usr/bin/{program} {place}/image/usr/bin/{program}
mount --bind {clients} {place}/image/mnt
mount -t proc proc {place}/image/proc
mount --rbind /dev {place}/image/dev
mount -t tmpfs none {place}/image/dev/shm
inside() {{ env -i {variables} "$(command -v chroot)" {place}/image "$@"; }}
"""


@pytest.fixture(scope="module")
def tree(dist: Path) -> Path:
    done = subprocess.run(["make", "tree", f"DIST={dist}"], cwd=ROOT, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return dist / "tree"


@pytest.fixture
def inside(programs: None, tree: Path, tmp_path: Path) -> Callable[[str], "subprocess.CompletedProcess[str]"]:
    """Return a function that runs a script in which `inside` runs a program in the container."""
    root = tmp_path / "image"
    for each in ("usr/bin", "etc", "tmp", "run", "var/log", "proc", "dev", "mnt", "opt/mpsd", "lib/x86_64-linux-gnu", "lib64"):
        (root / each).mkdir(parents=True)
    (root / "etc/mpsd.toml").write_text('backend = "sim"\n')
    (root / f"usr/bin/{PROGRAM}").write_text("the vendor's, which the image has\n")
    for name in GLIBC:
        (root / "lib/x86_64-linux-gnu" / name).write_bytes(Path("/lib/x86_64-linux-gnu", name).read_bytes())
        (root / "lib/x86_64-linux-gnu" / name).chmod(0o755)
    (root / "lib64" / GLIBC[0]).symlink_to(f"../lib/x86_64-linux-gnu/{GLIBC[0]}")
    (tmp_path / "host").symlink_to(tree)
    words = {"place": tmp_path, "program": PROGRAM, "clients": CLIENTS, "variables": VARIABLES}

    def run(script: str) -> "subprocess.CompletedProcess[str]":
        """Its processes end with it."""
        namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        script = SET_UP.format(**words) + script.format(**words)
        return subprocess.run([*namespaces, "sh", "-c", script], capture_output=True, text=True, timeout=120, check=False)

    return run


def test_it_serves_a_client_where_there_is_no_python_and_no_shell(inside: Callable[[str], object]) -> None:
    done = inside("""\
    mount --bind {place}/host/opt/mpsd {place}/image/opt/mpsd
    mount -o remount,bind,ro {place}/image/opt/mpsd
    inside /usr/bin/{program} -d
    inside /opt/mpsd/venv/bin/mpsctl --json lease create x --user 0 --sm 25% >/dev/null
    inside /mnt/smcount --json
    inside /opt/mpsd/venv/bin/mpsd check >{place}/check || cat {place}/check
    inside /usr/bin/{program} quit
    """)
    assert (done.returncode, done.stderr) == (0, ""), done
    [said] = [json.loads(line) for line in done.stdout.splitlines() if '"sms"' in line]
    assert said["seen"] == 32


def test_the_front_end_alone_fails_and_names_what_it_misses(inside: Callable[[str], object]) -> None:
    done = inside("""\
    inside /usr/bin/{program} -d || echo status $?
    inside /usr/bin/{program} get_default_active_thread_percentage || echo status $?
    ls {place}/image/tmp
    """)
    why = "Cannot start the MPS control daemon: no Python interpreter: /opt/mpsd/venv/bin/python3: No such file"
    assert done.stdout.startswith(why), done
    assert done.stdout.endswith("\nstatus 1\nstatus 1\n"), done
    assert done.stderr == "Cannot find MPS control daemon process\n"


def test_nothing_is_taken_from_the_machine_that_built_it(tree: Path) -> None:
    """The interpreter and its modules load no library from outside of the tree."""
    python = tree / "opt/mpsd/python"
    loader = next(python.glob("lib/ld-linux*"))
    modules = [*python.rglob("*.so"), *tree.glob("opt/mpsd/venv/lib/python*/site-packages/**/*.so")]
    assert len(modules) > 40
    for module in modules:
        words = [loader, "--library-path", python / "lib", "--list", module]
        listed = subprocess.run(words, capture_output=True, text=True, env={"LD_BIND_NOW": "1"}, check=True).stdout
        paths = [word for word in listed.split() if word.startswith("/")]
        assert all(Path(path).is_relative_to(tree) for path in paths), (module, paths)
