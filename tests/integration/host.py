"""A simulated host for one test: mpsd installed as the system's nvidia-cuda-mps-control, in separate namespaces.

The test can replay the exact commands of callers there: the default directories, an empty environment, `ps aux | grep`. The
host's files are mounted over the real ones and go with it; its first process reaps no children, as in many containers. `sleep`
does not sleep: callers use it as a precaution, which mpsd does not need.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.integration.client import Client
from tests.integration.machine import ANSWER_SECONDS, CLIENTS, PATH, PROGRAM, ROOT, SIMULATOR
from tests.integration.process import EVENT_SECONDS

OVERLAID = ("etc", "usr/bin", "tmp", "run", "var/log")
PATIENT = "/mnt/patient"  # a folder for PATH, with a `sleep` that sleeps
DRIVER_ROOT = "/mnt/driver-root"  # where a container finds the host
SIM_DIRECTORY = "/tmp/mpsd-sim-0"  # the simulator's own choice for root
NVIDIA_SMI = f"""\
#!/bin/sh
# of nvidia-smi what the callers use: -i GPU, -c MODE, -L
gpu=all
while [ $# -gt 0 ]; do
	case $1 in
	-i) gpu=$2; shift ;;
	-c) mode=$2; shift ;;
	-L) export MPSD_SIM_DIR={SIM_DIRECTORY}; exec {SIMULATOR}/bin/mpsd-sim status ;;
	esac
	shift
done
case $mode in 0) mode=DEFAULT ;; 3) mode=EXCLUSIVE_PROCESS ;; esac
export MPSD_SIM_DIR={SIM_DIRECTORY}
[ "$gpu" = all ] && gpu=0
exec {SIMULATOR}/bin/mpsd-sim set-compute-mode "$gpu" "$mode"
"""


class Host:
    """Namespaces, and what runs in them."""

    def __init__(self, place: Path, set_up: str) -> None:
        """set_up: a shell script, which writes `ready` when all is in place, and then becomes the first process."""
        self.place = place
        self._children: list[subprocess.Popen[bytes]] = []
        script = place / "set-up"
        script.write_text(set_up)
        words = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-e", str(script)]
        self._first = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert self._first.stdout
        said = self._first.stdout.readline().decode(errors="replace")
        self.trouble = "" if said == "ready\n" else said + self._first.communicate()[0].decode(errors="replace")
        if not self.trouble:
            self._pid = int(Path(f"/proc/{self._first.pid}/task/{self._first.pid}/children").read_text())

    def run(
        self,
        *words: str,
        environment: Mapping[str, str] | None = None,
        typed: str | None = "",
        uid: int = 0,
        seconds: float = ANSWER_SECONDS,
    ) -> "subprocess.CompletedProcess[str]":
        """In the namespaces, with this environment and no other variable; PATH where none is given."""
        return subprocess.run(
            self._enter(uid, {"PATH": PATH} if environment is None else environment, words),
            input=typed,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def shell(self, script: str, **options: Any) -> "subprocess.CompletedProcess[str]":
        return self.run("/bin/sh", "-c", script, **options)

    def client(self, program: str, *words: str, uid: int = 0, **variables: str) -> Client:
        output = self.place / f"client-{len(self._children)}.jsonl"
        driver = {"LD_LIBRARY_PATH": str(SIMULATOR / "lib"), "MPSD_SIM_DIR": SIM_DIRECTORY, "PATH": PATH}
        with output.open("wb") as file:
            process = subprocess.Popen(
                self._enter(uid, driver | variables, [str(CLIENTS / program), "--json", *words]),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        self._children.append(process)
        return Client(process, output)

    def counter(self, uid: int = 0, **variables: str) -> Client:
        return self.client("counter", "--seconds", "600", "--ms", "50", "--kernel-us", "3000", uid=uid, **variables)

    def begin(self, *words: str, environment: Mapping[str, str] | None = None) -> Path:
        """Runs on, and ends with the host; where its output goes."""
        output = self.place / f"output-{len(self._children)}"
        entered = self._enter(0, {"PATH": PATH} if environment is None else environment, words)
        with output.open("wb") as file:
            process = subprocess.Popen(entered, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
        self._children.append(process)
        return output

    def end(self, client: Client, name: str = "TERM") -> None:
        """A signal to a client, by its pid in there."""
        [said, *_] = client.events("ready") + client.events("sms")
        self.shell(f"kill -{name} {said['pid']}")
        client.process.wait(EVENT_SECONDS)

    def uuid(self) -> str:
        """Of GPU 0."""
        done = self.run(f"{SIMULATOR}/bin/mpsd-sim", "status", "--json", environment={"MPSD_SIM_DIR": SIM_DIRECTORY})
        return str(json.loads(done.stdout)["gpus"][0]["uuid"])

    def ask(self, line: str, **options: Any) -> str:
        """The answer to a command that must be answered, with the default directories."""
        done = self.run(f"/usr/bin/{PROGRAM}", typed=f"{line}\n", **options)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout

    def file(self, path: str) -> Path:
        """A file of the host, as it is seen from outside."""
        return Path(f"/proc/{self._pid}/root{path}")

    def processes(self) -> list[str]:
        """`ps aux`, those that have ended and were not collected included."""
        return self.run("ps", "aux").stdout.splitlines()

    def clear(self) -> None:
        """Its first process takes all others along."""
        for process in self._children:
            process.kill()
            process.wait()
        self._first.send_signal(signal.SIGKILL)
        self._first.wait()
        if self._first.stdout:
            self._first.stdout.close()
        shutil.rmtree(self.place, ignore_errors=True)

    def _enter(self, uid: int, environment: Mapping[str, str], words: Any) -> list[str]:
        given = [f"{name}={value}" for name, value in environment.items()]
        enter = ["nsenter", f"--target={self._pid}", "--mount", "--pid", "--root", "--wd=/"]
        return [*enter, f"--setuid={uid}", f"--setgid={uid}", "env", "-i", *given, *words]


_SET_UP = """\
mount --make-rprivate /
mount -t tmpfs none /mnt
for each in {overlaid}; do
	mkdir -p /mnt/upper/$each /mnt/scratch/$each
	chmod --reference=/$each /mnt/upper/$each
	mount -t overlay overlay -o lowerdir=/$each,upperdir=/mnt/upper/$each,workdir=/mnt/scratch/$each /$each
done
rm -rf /tmp/nvidia-mps /var/log/nvidia-mps /run/mpsd {machine} /usr/bin/{program}
cp {front_end} /usr/bin/{program}
cp {place}/nvidia-smi /usr/bin/nvidia-smi
mkdir -p /etc/mpsd {driver_root} {patient}
cp /usr/bin/sleep {patient}
ln -sf true /usr/bin/sleep
cp {place}/mpsd.toml /etc/mpsd/mpsd.toml
mount --rbind / {driver_root}
echo ready
"""


def _set_up(place: Path, front_end: Path) -> str:
    """Overlays first; then the programs, the configuration, and a driver root for containers."""
    return _SET_UP.format(
        overlaid=" ".join(OVERLAID),
        machine=SIM_DIRECTORY,
        program=PROGRAM,
        front_end=front_end,
        place=place,
        driver_root=DRIVER_ROOT,
        patient=PATIENT,
    )


def why_not() -> str:
    """Nothing where a host can be had."""
    if os.geteuid() != 0:
        return "needs uid 0"
    missing = [program for program in ("unshare", "nsenter", "ps") if not shutil.which(program)]
    return f"needs {', '.join(missing)}" if missing else ""


def build_front_end(directory: Path) -> Path:
    """As `make install` builds it, for this interpreter."""
    out = directory / PROGRAM
    words = ["make", "-s", "-C", str(ROOT / "clients/control"), f"OUT={out}", f"MPSD_PYTHON_DEFAULT={sys.executable}"]
    subprocess.run(words, check=True)
    return out


@contextmanager
def open_host(front_end: Path, first: str = "exec {patient}/sleep 86400") -> Iterator[Host]:
    """first: what the host's first process does after the setup."""
    place = Path(tempfile.mkdtemp(prefix="mpsd-host-", dir="/tmp"))
    place.chmod(0o755)
    (place / "mpsd.toml").write_text('backend = "sim"\n')
    (place / "nvidia-smi").write_text(NVIDIA_SMI)
    (place / "nvidia-smi").chmod(0o755)
    host = Host(place, _set_up(place, front_end) + first.format(patient=PATIENT))
    try:
        yield host
    finally:
        host.clear()
