"""A daemon that writes down what it was given: a fake package `mpsd` in a virtual environment without pip."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

FAKE_DAEMON = """
import json, os, signal, sys
from pathlib import Path

here = Path(__file__).parent
plan = json.loads((here / "plan.json").read_text())
mask = os.umask(0)
os.umask(mask)
status = Path("/proc/self/status").read_text()
report = {
    "pid": os.getpid(), "ppid": os.getppid(), "sid": os.getsid(0), "pgid": os.getpgid(0), "cwd": os.getcwd(), "umask": mask,
    "prefix": sys.prefix, "base_prefix": sys.base_prefix, "argv": sys.argv, "executable": sys.executable,
    "isolated": sys.flags.isolated,
    "fds": {fd: os.readlink("/proc/self/fd/" + fd) for fd in os.listdir("/proc/self/fd")
            if os.path.exists("/proc/self/fd/" + fd)},
    "cmdline": Path("/proc/self/cmdline").read_bytes().decode().split("\\0")[:-1],
    "environ": Path("/proc/self/environ").read_bytes().decode(),
    "signals": [  # 1 to 31: those above are glibc's own, and GNU make starts its children with them ignored
        int(line.split()[1], 16) & 0x7FFFFFFF for line in status.splitlines() if line.startswith(("SigBlk", "SigIgn"))
    ],
}
(here / "report.tmp").write_text(json.dumps(report))
(here / "report.tmp").rename(here / "report.json")
if "--ready-fd" in sys.argv:
    ready = int(sys.argv[sys.argv.index("--ready-fd") + 1])
    for word in plan["words"]:
        os.write(ready, word.encode())
    if plan["close"]:
        os.close(ready)
if plan["stay"]:
    signal.alarm(30)
    signal.pause()
"""


@dataclass(frozen=True, slots=True)
class Installed:
    """A virtual environment with the fake daemon, and the front end next to its interpreter."""

    venv: Path
    program: Path
    package: Path

    def plan(self, *words: str, close: bool = True, stay: bool = False) -> None:
        (self.package / "plan.json").write_text(json.dumps({"words": words, "close": close, "stay": stay}))
        (self.package / "report.json").unlink(missing_ok=True)

    def report(self) -> dict[str, Any]:
        until = time.monotonic() + 10
        while not (self.package / "report.json").exists():
            assert time.monotonic() < until, "no daemon came up"
            time.sleep(0.002)
        report: dict[str, Any] = json.loads((self.package / "report.json").read_text())
        return report

    def run(self, *arguments: str, program: Path | None = None, **options: Any) -> "subprocess.CompletedProcess[str]":
        options = {"env": {}, "timeout": 20, **options}
        result = subprocess.run([program or self.program, *arguments], capture_output=True, text=True, **options)
        assert "Sanitizer" not in result.stderr, result.stderr
        return result


@pytest.fixture(scope="module")
def fake_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    venv = tmp_path_factory.mktemp("venv") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (package := next(venv.glob("lib/python*/site-packages")) / "mpsd").mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(FAKE_DAEMON)
    return venv


@pytest.fixture
def installed(fake_environment: Path, front_end: Path) -> Iterator[Installed]:
    program = fake_environment / "bin" / "nvidia-cuda-mps-control"
    shutil.copy(front_end, program)
    made = Installed(fake_environment, program, next(fake_environment.glob("lib/python*/site-packages")) / "mpsd")
    made.plan("0\n")
    yield made
    if (made.package / "report.json").exists():
        try:
            os.kill(made.report()["pid"], signal.SIGKILL)
        except ProcessLookupError:
            pass
