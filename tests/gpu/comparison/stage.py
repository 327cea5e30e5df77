"""The place of one comparison on the machine: its directory, the two systems in it, the clock, and the clearing up."""

import gzip
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from mpsd_client import Client as Mpsd
from mpsd_client import calls

from tests.gpu.comparison import processes
from tests.gpu.comparison.clients import end_all
from tests.gpu.comparison.system import System, SystemFailed, make_place
from tests.gpu.comparison.table import Table

ROOT = Path(__file__).resolve().parents[3]
SIMULATOR = ROOT / "native/sim"
CLIENTS = ROOT / "tests/clients/bin"
FRONT_END = ROOT / "clients/control/nvidia-cuda-mps-control"
VENDOR = Path("/usr/local/nvidia/bin/nvidia-cuda-mps-control")
TORCH_PYTHON = Path("/opt/torch/.venv/bin/python3")
OTHER_UID = 1000
AS_OTHER = ("setpriv", f"--reuid={OTHER_UID}", f"--regid={OTHER_UID}", "--clear-groups")
FULL_TRIALS = 20
FORGIVING = '[faults]\nquarantine = "off"\ncrash_pause_max = 0.0\n'  # the same program is the culprit in trial after trial
_DESCRIPTORS = 8192
_KEPT_LOG_BYTES, _PACKED_LOG_BYTES = 2 << 20, 64 << 20
OTHERS_LOG = "others.log.gz"


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command line."""

    vendor: Path
    front_end: Path
    python: Path  # mpsd's
    torch_python: Path | None
    trials: int
    is_simulated: bool


@dataclass(slots=True)
class Stage:
    """Guards that both systems, and all processes that they started, are gone at its end."""

    options: Options
    work: Path
    table: Table
    vendor: System
    mpsd: System
    section: str = ""
    deadline: float = 0.0
    others: list[System] = field(default_factory=list)  # of one section only
    _began: float = field(default_factory=time.monotonic)

    @property
    def both(self) -> tuple[System, System]:
        return (self.vendor, self.mpsd)

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._began:6.1f} s] {self.section}: {text}", flush=True)

    def left(self) -> float:
        """Seconds until the section's end."""
        return max(0.0, self.deadline - time.monotonic())

    def trials(self, full: int) -> int:
        """So many where `full` are done with --trials 20; at least one."""
        return max(1, round(full * self.options.trials / FULL_TRIALS))

    def add(self, what: str, **cells: object) -> None:
        row = self.table.add(self.section, what, **cells)
        self.say(" | ".join(filter(None, row.cells())))

    def gpus(self) -> list[str]:
        """Return the UUIDs of the GPUs that mpsd has."""
        with Mpsd(self.mpsd.pipe / "mpsd.sock") as mpsd:
            return [device.uuid for device in mpsd.ask(calls.device_list()).items]

    def two_gpus(self, what: str) -> list[str]:
        """Return the UUIDs of the GPUs that mpsd has; none, and a row that says so, if there are not two."""
        if len(gpus := self.gpus()) >= 2:
            return gpus
        self.add(what, remark="not run: it needs two GPUs")
        return []

    def keep(self, key: str, figures: object) -> None:
        self.table.keep(self.section, key, figures)

    def another(
        self,
        name: str,
        control: Path,
        like: System,
        owner: int | None = None,
        user: Sequence[str] = (),
        config: str = "",
    ) -> System:
        """Return one more system for this section, in a separate directory; `config` is added to mpsd's."""
        made = _system(self.options, self.work, name, control, like is self.mpsd, owner, config)
        made.user = user
        self.others.append(made)
        return made

    def clear(self) -> None:
        """Remove all clients and all systems of a section at its end."""
        for system in (*self.both, *self.others):
            end_all(system.clients)
            system.clients.clear()
        for system in self.others:
            system.kill()
            _keep_log_of(system, self.section)
        self.others.clear()


@contextmanager
def open_stage(options: Options, table: Table) -> Iterator[Stage]:
    """Everything it started has been ended afterwards; the logs are in $OUT."""
    _raise_descriptor_limit()
    work = Path(tempfile.mkdtemp(prefix="mpsd-compare-", dir="/tmp"))
    work.chmod(0o755)
    (work / "machine").mkdir()
    (work / "machine").chmod(0o777)
    shutil.copytree(CLIENTS, work / "bin")  # another user may not be able to enter the checkout
    vendor = _system(options, work, "vendor", options.vendor, False)
    mpsd = _system(options, work, "mpsd", options.front_end, True)
    stage = Stage(options, work, table, vendor, mpsd)
    try:
        yield stage
    finally:
        with suppress(SystemFailed):
            stage.clear()
        for system in stage.both:
            with suppress(SystemFailed):
                system.quit()
        _keep_logs(stage)
        if left := processes.end_below(work):
            print(f"processes {left} could not be ended", file=sys.stderr)
        shutil.rmtree(work, ignore_errors=True)


def _system(
    options: Options, work: Path, name: str, control: Path, is_mpsd: bool, owner: int | None = None, more_config: str = ""
) -> System:
    place = work / name
    make_place(place, owner)
    variables = dict(_variables(options, work))
    if is_mpsd:
        config = place / "mpsd.toml"
        culprits = more_config if "[faults]" in more_config else more_config + FORGIVING
        config.write_text(f'state_directory = "{place}/state"\n[vendor]\ncontrol = "{options.vendor}"\n{culprits}')
        variables |= {"MPSD_PYTHON": str(options.python), "MPSD_CONFIG": str(config)}
    return System(name, control, place, work / "bin", variables, has_spares=is_mpsd)


def _variables(options: Options, work: Path) -> Mapping[str, str]:
    """Nothing of the caller's MPS; the simulator, where it was asked for."""
    dropped = ("CUDA_MPS_", "CUDA_VISIBLE_DEVICES", "MPSD_", "OUT")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    if options.is_simulated:
        machine = {"MPSD_SIM_DIR": f"{work}/machine", "MPSD_SIM_FAST": "1"}
        machine["MPSD_SIM_GPUS"] = os.environ.get("MPSD_SIM_GPUS", "1")
        machine["MPSD_SIM_MEMORY_MIB"] = str(1 << 20)  # a thousand contexts need more than any GPU has
        kept |= machine | {"MPSD_BACKEND": "sim", "LD_LIBRARY_PATH": str(SIMULATOR / "lib")}
    return kept


def output_directory() -> Path | None:
    """$OUT, which is there then."""
    if not os.environ.get("OUT"):
        return None
    Path(os.environ["OUT"]).mkdir(parents=True, exist_ok=True)
    return Path(os.environ["OUT"])


def _keep_logs(stage: Stage) -> None:
    """The tail of each log; few files, since few come back from the GPU machine."""
    target = output_directory()
    if target is None:
        return
    for system, names in ((stage.mpsd, ("mpsd.log", "control.log")), (stage.vendor, ("control.log",))):
        for name in names:
            log = system.log / name
            if log.exists():
                (target / f"{system.name}-{name}".replace("mpsd-mpsd", "mpsd")).write_bytes(log.read_bytes()[-_KEPT_LOG_BYTES:])


def _keep_log_of(system: System, section: str) -> None:
    """mpsd's, of a system that goes with its section; all in one file."""
    target, log = output_directory(), system.log / "mpsd.log"
    if target is not None and log.exists():
        with gzip.open(target / OTHERS_LOG, "ab") as out:
            out.write(f"== {section}: {system.name}\n".encode() + log.read_bytes()[-_PACKED_LOG_BYTES:])


def _raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
