"""A virtual machine: a distribution's kernel under software emulation, with this machine's files as its own, read-only.

The guest boots from a small initramfs (busybox, the modules for 9p), mounts this machine's root over 9p, and runs pytest on
tests/kmod/guest with the interpreter that runs here.  It reports on its second serial line, one JSON object a line.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.kmod.building import Build
from tests.kmod.cases import CHECKOUT
from tests.kmod.distributions import KERNEL_DIRECTORY, Root

GUEST_TESTS = CHECKOUT / "tests/kmod/guest"
APPLETS = ("chroot", "insmod", "mkdir", "mount", "poweroff", "sh")
NEEDED_MODULES = ("virtio_pci", "9pnet_virtio", "9p")  # before the root file system can be read
BOOT_SECONDS = 900  # a normal run takes a tenth of it, on a busy machine half
DEBUG_SLOWDOWN = 4  # by KASAN and lockdep
QEMU = """
qemu-system-x86_64 -M q35 -accel tcg,thread=multi -cpu max -smp 2 -m 3072 -nodefaults -no-reboot -display none
-serial file:{console} -serial file:{reports}
-fsdev local,id=host,path=/,security_model=none,readonly=on,multidevs=remap -device virtio-9p-pci,fsdev=host,mount_tag=host
"""
COMMAND_LINE = "console=ttyS0 panic=-1 loglevel=5 nokaslr mitigations=off"

# Every line of the kernel's log is on the console from here on; panic=-1 and -no-reboot make a panic the end of qemu.
INIT = """\
#!/bin/sh
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
while read -r module; do insmod "/modules/$module"; done </modules/order
mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=262144 host /host
mount -t proc proc /host/proc; mount -t sysfs sys /host/sys; mount -t devtmpfs dev /host/dev
mkdir -p /host/dev/shm; mount -t tmpfs tmp /host/dev/shm
chroot /host /bin/sh -c {command}
poweroff -f
"""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one test function in the guest, of all its parameters together."""

    outcome: str  # passed, failed or skipped
    seconds: float
    text: str


@dataclass(slots=True)
class Boot:
    """One life of a guest.  seconds: from the start of qemu to its end; first_seconds: to the first result."""

    results: dict[str, Result] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    console: str = ""
    seconds: float = 0.0
    first_seconds: float = 0.0


def names_of_guest_tests(tests: Path = GUEST_TESTS) -> list[str]:
    """file::function, in order; read, not imported: what they import may be there only in a guest."""
    found = []
    for file in sorted(tests.glob("test_*.py")):
        functions = re.findall(r"^(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE)
        found += [f"{file.stem}::{name}" for name in functions]
    return found


def boot(root: Root, build: Build, selection: str = "") -> Boot:
    """Boot, run the guest's tests and power off.  selection: a pytest -k expression."""
    slowdown = DEBUG_SLOWDOWN if root.distribution.is_debug else 1
    return run(root, build.kernel_image, guest_command(build, selection, slowdown), BOOT_SECONDS * slowdown)


def run(root: Root, kernel_image: Path, command: str, limit_seconds: float = BOOT_SECONDS) -> Boot:
    """Boot, run a command of this machine's in the guest, as root, and power off."""
    with tempfile.TemporaryDirectory(prefix="mpsd-kmod-") as name:
        place = Path(name)
        console, reports = place / "console", place / "reports"
        initramfs = make_initramfs(root, place, command)
        argv = shlex.split(QEMU.format(console=console, reports=reports))
        argv += ["-kernel", str(kernel_image), "-initrd", str(initramfs), "-append", COMMAND_LINE]
        began = time.monotonic()
        first = wait_for(argv, reports, began, limit_seconds)
        return read_reports(reports, console.read_text(errors="replace"), time.monotonic() - began, first)


def wait_for(argv: list[str], reports: Path, began: float, limit_seconds: float) -> float:
    """Run qemu to its end, or end it after limit_seconds.  When the first report came, in seconds."""
    first = 0.0
    qemu = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        while qemu.poll() is None and time.monotonic() - began < limit_seconds:
            if not first and reports.exists() and reports.stat().st_size:
                first = time.monotonic() - began
            try:
                qemu.wait(0.2)
            except subprocess.TimeoutExpired:
                pass
    finally:
        if qemu.poll() is None:
            os.killpg(qemu.pid, signal.SIGKILL)
            qemu.wait()
    return first


def guest_command(build: Build, selection: str, slowdown: int) -> str:
    variables = {"MPSD_KMOD_MODULES": str(build.directory), "MPSD_GUEST_SLOWDOWN": str(slowdown)}
    return pytest_command(GUEST_TESTS, variables, selection)


def pytest_command(tests: Path, variables: dict[str, str], selection: str = "") -> str:
    """pytest on a directory of this machine's, with guest_run.py, pytest.ini and what else of GUEST_TESTS its tests import."""
    environment = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/dev/shm",
        "TMPDIR": "/dev/shm",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": ":".join(dict.fromkeys(map(str, (CHECKOUT, tests, GUEST_TESTS)))),
        "MPSD_KMOD_REPORTS": "/dev/ttyS1",
        **variables,
    }
    words = ["env", "-i", *(f"{name}={value}" for name, value in environment.items())]
    words += [sys.executable, "-m", "pytest", "-q", "-c", str(GUEST_TESTS / "pytest.ini"), "--rootdir", str(tests)]
    words += ["--confcutdir", str(tests), "-p", "guest_run", "-p", "no:cacheprovider", "--color=no"]
    words += ["-k", selection] if selection else []
    return f"cd {shlex.quote(str(tests))} && exec {shlex.join(words)}"


def make_initramfs(root: Root, place: Path, command: str) -> Path:
    top = place / "initramfs"
    for directory in ("bin", "dev", "host", "modules", "proc", "sys"):
        (top / directory).mkdir(parents=True)
    shutil.copy("/bin/busybox", top / "bin/busybox")
    for applet in APPLETS:
        (top / "bin" / applet).symlink_to("busybox")
    order = [unpack_module(file, top / "modules") for file in module_files(root)]
    (top / "modules/order").write_text("".join(f"{name}\n" for name in order))
    (top / "init").write_text(INIT.format(command=shlex.quote(command)))
    (top / "init").chmod(0o755)
    made = place / "initramfs.cpio"
    with made.open("wb") as out:
        names = "\n".join(str(each.relative_to(top)) for each in sorted(top.rglob("*")))
        subprocess.run(["cpio", "--quiet", "-o", "-H", "newc"], cwd=top, input=names.encode(), stdout=out, check=True)
    return made


def module_files(root: Root) -> list[Path]:
    """What NEEDED_MODULES depend on, and they, in the order in which they can be loaded.  Those built in are left out."""
    found: list[Path] = []
    for module in NEEDED_MODULES:
        lines = subprocess.run(
            ["modprobe", "-d", root.path / KERNEL_DIRECTORY, "-S", root.kernel_release, "--show-depends", module],
            capture_output=True,
            text=True,
        ).stdout
        found += [Path(line.split()[1]) for line in lines.splitlines() if line.startswith("insmod ")]
    return list(dict.fromkeys(found))


def unpack_module(file: Path, directory: Path) -> str:
    name = file.name.removesuffix(".xz")
    if file.suffix == ".xz":
        (directory / name).write_bytes(subprocess.run(["xz", "-dc", file], capture_output=True, check=True).stdout)
    else:
        shutil.copy(file, directory / name)
    return name


def read_reports(reports: Path, console: str, seconds: float, first: float) -> Boot:
    """A test with several parameters has the worst outcome of them."""
    found = Boot(console=console, seconds=seconds, first_seconds=first)
    for line in reports.read_text(errors="replace").splitlines() if reports.exists() else ():
        try:
            said = json.loads(line)
        except ValueError:
            continue  # cut off by the machine's end
        if "fact" in said:
            found.facts[said["fact"]] = said["value"]
            continue
        before = found.results.get(said["name"], Result("skipped", 0.0, ""))
        worst = max(before.outcome, said["outcome"], key=("skipped", "passed", "failed").index)
        text = "\n".join(each for each in (before.text, said["text"]) if each)
        found.results[said["name"]] = Result(worst, before.seconds + said["seconds"], text)
    return found
