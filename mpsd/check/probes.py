"""What this machine offers mpsd, one probe for each part; a finding has advice.

Nothing is changed: a probe reads, and if mpsd has to write somewhere it checks the permission.  A probe never raises for a
finding.
"""

import os
import resource
import stat
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from mpsd.check.containment_proof import load_proofs
from mpsd.config import paths as places
from mpsd.config.options import Config
from mpsd.errors import MpsdError
from mpsd.host import processes
from mpsd.host.inspector import Inspector
from mpsd.host.inspector_answers import Unreadable
from mpsd.host.mounts import mounted
from mpsd.host.peers import may_impersonate
from mpsd.host.programs import own_program
from mpsd.host.trusted_directories import PathCheck, look
from mpsd.model.device import ComputeMode, Device

NVML_SECONDS = 10.0  # a hung GPU can block NVML for ever
INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO, include/linux/proc_ns.h
NETWORK_FILE_SYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "ceph", "9p", "beegfs"})
PIPE_AREA, LOG_AREA, STATE_AREA = "pipe directory", "log directory", "state directory"
_MADE_LEVELS = {PIPE_AREA: 1, LOG_AREA: 1, STATE_AREA: 99}  # how many missing directories the start creates
SHM_LEAST_BYTES = 64 << 20
_DEVICE_ADVICE = {"gpu": "is the driver loaded? see nvidia-smi", "sim": "build the simulator: make -C native"}

# The purpose of each: docs/install.md, "Privileges".
CAPABILITIES = {
    "CAP_SYS_ADMIN": (21, "sending a client's own process id to its domain"),
    "CAP_SETUID": (7, "sending a client's own user id to its domain"),
    "CAP_SETGID": (6, "sending a client's own group id to its domain"),
    "CAP_SYS_PTRACE": (19, "reading about other users' clients"),
    "CAP_KILL": (5, "ending other users' clients"),
    "CAP_CHOWN": (0, "giving files to the user of a domain"),
    "CAP_DAC_OVERRIDE": (1, "using directories that other users made"),
    "CAP_LEASE": (28, "keeping other users from writing to a core dump while it is read"),
    "CAP_SYSLOG": (34, "reading of faults in the kernel log"),
}


class Grade(StrEnum):
    GOOD = "good"
    NOTE = "note"  # works, with a limitation worth knowing
    BAD = "bad"  # mpsd would not start, or would not do its work


class Finding(Struct, frozen=True):
    """One line of the report; `advice` is empty if nothing needs to be done."""

    area: str
    grade: Grade
    found: str
    advice: str = ""


def probe_machine(config: Config, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the findings of every probe, in the order in which an operator would check."""
    yield from probe_directory(PIPE_AREA, config.pipe_directory)
    yield from probe_directory(LOG_AREA, config.log_directory)
    yield from probe_state(config, environ)
    yield probe_daemon(config)
    yield from probe_programs(config)
    yield from probe_vendor(config, environ)
    yield from probe_devices(config)
    yield probe_shared_memory()
    yield probe_pid_namespace()
    yield probe_privilege()
    yield from probe_private()
    yield from probe_duplicates()
    yield from probe_sentinel(config, environ)
    yield probe_descriptors(config)


def probe_directory(area: str, path: str) -> Iterator[Finding]:
    """Check that the directory exists or can be created, that the start accepts it, and that mpsd can write there.

    For the pipe directory, check also that other users can reach it, and that it can hold sockets.
    """
    try:
        found = look(Path(path), may_be_shared=area == LOG_AREA)
    except NotADirectoryError as exc:
        yield Finding(area, Grade.BAD, f"{path}: {exc.filename} is not a directory", "remove it, or name another directory")
        return
    except OSError as exc:
        yield Finding(area, Grade.BAD, f"{path}: {exc.strerror}", "name another directory")
        return
    existing = found.entry.path
    if found.refusal:
        yield Finding(area, Grade.BAD, f"{path}: {found.refusal}", "mpsd does not start with it")
        return
    if len(found.missing) > _MADE_LEVELS[area]:
        advice = f"mkdir -p {os.path.dirname(path)}"
        yield Finding(area, Grade.BAD, f"{path}: there is no {existing.rstrip('/')}/{found.missing[0]}", advice)
        return
    if not os.access(existing, os.W_OK | os.X_OK):
        words = f"{path}: {existing} is not writable by uid {os.geteuid()}"
        yield Finding(area, Grade.BAD, words, "change its owner, or name another directory")
        return
    mode = stat.S_IMODE(found.entry.mode)
    state = f"will be made in {existing}" if found.missing else f"mode {mode:04o}"
    yield Finding(area, Grade.GOOD, f"{path} ({len(os.fsencode(path))} bytes), {state}")
    yield from _probe_writers(area, path, found)
    if area == PIPE_AREA:
        yield from _probe_reach(area, path, mode, Path(existing))


def _probe_writers(area: str, path: str, found: PathCheck) -> Iterator[Finding]:
    if found.missing or not found.entry.writers:
        return
    mode = stat.S_IMODE(found.entry.mode)
    if found.tightens:
        words = f"mode {mode:04o}: mpsd takes the right to write from group and others when it starts"
        yield Finding(area, Grade.NOTE, words, f"chmod go-w {path}")
    else:
        words = f"mode {mode:04o}: {found.entry.writers} may remove logs and make files under their names"
        yield Finding(area, Grade.NOTE, words, "name a directory of mpsd's own (CUDA_MPS_LOG_DIRECTORY)")


def _probe_reach(area: str, path: str, mode: int, existing: Path) -> Iterator[Finding]:
    if os.path.isdir(path) and not mode & stat.S_IXOTH:
        yield Finding(area, Grade.NOTE, f"mode {mode:04o}: other users cannot reach the socket", f"chmod o+x {path}")
    kind = _file_system(existing)
    if kind in NETWORK_FILE_SYSTEMS:
        yield Finding(area, Grade.BAD, f"on {kind}: a network file system cannot hold sockets", "name a local directory")


def probe_state(config: Config, environ: Mapping[str, str]) -> Iterator[Finding]:
    try:
        place = places.state_directory(config, os.geteuid(), environ)
    except MpsdError as exc:
        yield Finding(STATE_AREA, Grade.BAD, str(exc), "set state_directory to a shorter path")
        return
    yield from probe_directory(STATE_AREA, str(place))


def probe_daemon(config: Config) -> Finding:
    """Report whether a daemon already serves this pipe directory."""
    file = Path(config.pipe_directory, f"{places.PROGRAM}.pid")
    try:
        pid = int(_read_start(file, 32))
        with closing(Inspector()) as inspector:
            facts = inspector.facts_now(pid, []) if processes.owner(pid) else None  # a user may have written any number
    except (OSError, ValueError, Unreadable):
        facts = None
    if facts is None:
        return Finding("running daemon", Grade.GOOD, "none")
    program = facts.program
    if program != places.PROGRAM:
        return Finding("running daemon", Grade.GOOD, f"none; pid {pid} in {file} is another program now")
    advice = f"echo quit | {places.PROGRAM}, before another is started"
    return Finding("running daemon", Grade.NOTE, f"pid {pid}: {program}", advice)


def _read_start(file: Path, most: int) -> bytes:
    """Read the start of a file, even if a user has put a FIFO there, or a link to a device that acts when it is opened.

    Raises OSError.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return os.read(descriptor, most)
    finally:
        os.close(descriptor)


def probe_programs(config: Config) -> Iterator[Finding]:
    """Report mpsd's own programs: each one that is missing, or that all are there."""
    area = "mpsd's programs"
    wanted = [own_program(name) for name in ("inspector", "keeper", "launcher", "sentinel")]
    if config.sentinel.mode == "off":
        wanted.pop()
    unfit = [each for each in wanted if not os.access(each, os.X_OK)]
    for each in unfit:
        trouble = "not executable" if each.exists() else "missing"
        yield Finding(area, Grade.BAD, f"{each} is {trouble}", "install mpsd anew")
    if not unfit:
        yield Finding(area, Grade.GOOD, f"{len(wanted)} in {wanted[0].parents[1]}")


def probe_vendor(config: Config, environ: Mapping[str, str]) -> Iterator[Finding]:
    try:
        control = places.find_vendor_control(config, environ)
    except MpsdError as exc:
        yield Finding("vendor program", Grade.BAD, str(exc), "install the driver's MPS programs, or set vendor.control")
        return
    yield Finding("vendor program", Grade.GOOD, str(control))
    server = "nvidia-cuda-mps-server"
    folders = (str(control.parent), *environ.get("PATH", "").split(":"), "/usr/bin")
    found = [f"{folder}/{server}" for folder in folders if os.access(f"{folder}/{server}", os.X_OK)]
    if found:
        yield Finding("vendor server", Grade.GOOD, found[0])
    else:
        missing = f"no {server} beside {control} or on PATH"
        yield Finding("vendor server", Grade.BAD, missing, "install the driver's MPS programs")


def probe_devices(config: Config) -> Iterator[Finding]:
    """Report the GPUs by NVML, read in a thread so that a hung GPU cannot block the report."""
    answers: list[tuple[Device, ...] | Exception] = []
    thread = threading.Thread(target=lambda: answers.append(_read_devices(config)), daemon=True)
    thread.start()
    thread.join(NVML_SECONDS)
    answer = answers[0] if answers else TimeoutError(f"NVML has not answered for {NVML_SECONDS:.0f} seconds")
    if isinstance(answer, Exception):
        yield Finding("GPUs", Grade.BAD, str(answer), _DEVICE_ADVICE[config.backend])
        return
    for device in answer:
        yield _judge_device(device)


def _judge_device(device: Device) -> Finding:
    mode = device.compute_mode
    found = f"{device.ordinal}: {device.name}, {device.total_bytes >> 20} MiB, {device.uuid}, compute mode {mode}"
    advice = f"nvidia-smi -i {device.uuid} -c DEFAULT"
    if mode is ComputeMode.PROHIBITED:
        return Finding("GPUs", Grade.BAD, found, advice)
    if mode is ComputeMode.EXCLUSIVE_PROCESS:  # the second server would find the device taken
        return Finding("GPUs", Grade.NOTE, found, f"one domain only, without a hot spare; for more: {advice}")
    return Finding("GPUs", Grade.GOOD, found)


def _read_devices(config: Config) -> tuple[Device, ...] | Exception:
    try:
        from mpsd.gpu import nvml  # pynvml is large: loaded only here

        visible = None if config.visible_devices == "all" else config.visible_devices
        return nvml.read_devices(visible, places.nvml_library(config))
    except Exception as exc:
        return exc


def probe_shared_memory() -> Finding:
    """Report whether vendor servers and their clients can share memory in /dev/shm."""
    try:
        facts = os.statvfs("/dev/shm")
    except OSError as exc:
        return Finding("/dev/shm", Grade.BAD, exc.strerror or str(exc), "mount a tmpfs there")
    free = facts.f_bavail * facts.f_frsize
    if not os.access("/dev/shm", os.W_OK):
        return Finding("/dev/shm", Grade.BAD, f"not writable by uid {os.geteuid()}", "chmod 1777 /dev/shm")
    if free < SHM_LEAST_BYTES:
        return Finding("/dev/shm", Grade.NOTE, f"{free >> 20} MiB free", "enlarge it; in a container, --shm-size")
    return Finding("/dev/shm", Grade.GOOD, f"{_file_system(Path('/dev/shm'))}, {free >> 20} MiB free")


def probe_pid_namespace() -> Finding:
    found = os.readlink("/proc/self/ns/pid")
    if found == INITIAL_PID_NAMESPACE:
        return Finding("pid namespace", Grade.GOOD, f"the machine's own, {found}")
    advice = "share the host's (hostPID, --pid=host) unless all clients live in this one: others are seen with pid 0"
    return Finding("pid namespace", Grade.NOTE, f"a container's, {found}", advice)


def probe_privilege() -> Finding:
    held = _effective_capabilities()
    missing = {name: use for name, (bit, use) in CAPABILITIES.items() if not held >> bit & 1}
    who = f"uid {os.geteuid()}"
    if not missing:
        return Finding("privilege", Grade.GOOD, f"{who}, with every capability that mpsd uses")
    lost = "; ".join(f"{name}: {use}" for name, use in missing.items())
    without_root = "clients of this user alone are served, none is relayed (docs/unprivileged.md); start as root for the rest"
    advice = without_root if os.geteuid() else "grant them"
    return Finding("privilege", Grade.NOTE, f"{who}, without {lost}", advice)


def probe_private(launcher: Path | None = None) -> Iterator[Finding]:
    """Report whether vendor daemons can run where no other user reaches them; only as root, with the relay, is that needed."""
    area = "private sockets"
    if not may_impersonate():
        return
    program = launcher or own_program("launcher")
    try:
        done = subprocess.run([program, "--try", "/"], capture_output=True, text=True, timeout=NVML_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as exc:
        yield Finding(area, Grade.BAD, f"{program} cannot be run: {exc}", "install mpsd anew")
        return
    if done.returncode == 0:
        yield Finding(area, Grade.GOOD, "each vendor daemon gets a separate mount namespace")
        return
    found = f"every user can connect to vendor daemons past mpsd and past leases: {done.stderr.strip()}"
    yield Finding(area, Grade.NOTE, found, "let mpsd mount: CAP_SYS_ADMIN, and a security profile that allows it")


def probe_duplicates() -> Iterator[Finding]:
    """Report whether descriptors of other processes can be duplicated; a container's security profile often forbids it.

    The process whose descriptor is duplicated is this one: to read another process can block.
    """
    area = "descriptors"
    if not may_impersonate():
        return
    try:
        with ExitStack() as stack:
            stack.callback(os.close, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            pidfd = os.pidfd_open(os.getpid())
            stack.callback(os.close, pidfd)
            inspector = stack.enter_context(closing(Inspector()))
            for _, taken in inspector.take_now(os.getpid(), pidfd, [os.devnull], []):
                os.close(taken)
    except (OSError, Unreadable) as exc:
        found = f"clients' descriptors cannot be duplicated (pidfd_open, pidfd_getfd): {getattr(exc, 'strerror', None) or exc}"
        advice = "allow both in the security profile; without them no UVM events, no shield and no holding (docs/uvm.md)"
        yield Finding(area, Grade.NOTE, found, advice)
    else:
        yield Finding(area, Grade.GOOD, "clients' descriptors can be duplicated")


def probe_sentinel(config: Config, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Report whether the sentinel is started, where it is configured, and the last self-test."""
    area, program = "sentinel", own_program("sentinel")
    if config.sentinel.mode == "off" or not os.access(program, os.X_OK):  # the latter: probe_programs reports it
        return
    if not may_impersonate():
        yield Finding(area, Grade.NOTE, "without root mpsd starts none", "start as root, or set sentinel.mode")
    else:
        yield Finding(area, Grade.GOOD, f"{program}, {config.sentinel.mode}")
        yield from _probe_proof(config, environ)


def _probe_proof(config: Config, environ: Mapping[str, str]) -> Iterator[Finding]:
    try:
        known = load_proofs(places.state_directory(config, os.geteuid(), environ))
    except MpsdError:
        return  # probe_state reports it
    last = max(known, key=lambda each: each.at, default=None)
    if last is None:
        yield Finding("sentinel", Grade.NOTE, "not tested here yet", "mpsd check --gpu; the first start does it")
    else:
        advice = "" if last.is_good else "mpsd check --gpu"
        yield Finding("sentinel", Grade.GOOD if last.is_good else Grade.NOTE, f"tested: {last}", advice)


def probe_descriptors(config: Config) -> Finding:
    """Report whether the limit of open files suffices: a relayed connection takes two, a session one."""
    needed = 2 * config.relay.max_connections + config.ui.max_sessions + 256
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < needed:
        found = f"at most {hard}; the configured limits may need {needed}"
        return Finding("open files", Grade.NOTE, found, "raise it: LimitNOFILE=, ulimit -n")
    return Finding("open files", Grade.GOOD, f"up to {'any number' if hard == resource.RLIM_INFINITY else hard}")


def _effective_capabilities() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def _file_system(path: Path) -> str:
    """Return the type of the file system that holds `path`, from the mount with the longest matching name."""
    real, best, kind = os.fsencode(os.path.realpath(path)), b"", b"unknown"
    for point, found in mounted():
        at = point.rstrip(b"/") + b"/"
        if (real + b"/").startswith(at) and len(at) >= len(best):
            best, kind = at, found
    return kind.decode(errors="replace")
