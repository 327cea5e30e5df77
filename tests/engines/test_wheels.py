"""What `make dist` builds: a wheel from each source distribution, complete, and good for a daemon that serves a client."""

import json
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.integration.machine import PROGRAM, ROOT, open_machine
from tests.integration.process import wait_for

pytestmark = pytest.mark.deadline(300)
PROGRAMS = [f"{each}/mpsd-{each}" for each in ("keeper", "inspector", "launcher", "sentinel")]
SIMULATOR = [f"sim/bin/{PROGRAM}", "sim/bin/nvidia-cuda-mps-server", "sim/bin/mpsd-sim", "sim/lib/libnvidia-ml.so.1"]


def run(*command: object, **options: object) -> str:
    done = subprocess.run(list(map(str, command)), text=True, capture_output=True, check=False, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return str(done.stdout)


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheels, and nothing of the checkout."""
    made = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "venv", made)
    run(made / "bin/python", "-m", "pip", "-q", "install", *sorted(dist.glob("*.whl")), cwd="/")
    return made


def test_a_wheel_is_for_every_python_and_names_the_glibc_that_it_needs(dist: Path) -> None:
    names = sorted(path.name for path in dist.glob("*.whl"))
    assert [re.sub(r"\d+_\d+_\w+\.whl", "", name) for name in names] == [
        "mpsctl-0.1.0-py3-none-any.whl", "mpsd-0.1.0-cp311-abi3-manylinux_", "mpsd_client-0.1.0-cp311-abi3-manylinux_",
    ]  # fmt: skip


def test_a_wheel_has_every_module_and_every_program_without_symbols(dist: Path) -> None:
    with zipfile.ZipFile(next(dist.glob("mpsd-*.whl"))) as wheel:
        names = set(wheel.namelist())
        keeper = wheel.read("mpsd-0.1.0.data/data/lib/mpsd/keeper/mpsd-keeper")
    modules = {str(path.relative_to(ROOT)) for path in ROOT.glob("mpsd/**/*.py")}
    programs = {f"mpsd-0.1.0.data/data/lib/mpsd/{each}" for each in [*PROGRAMS, *SIMULATOR, "libmpsd.so"]}
    assert not (modules | programs | {f"mpsd-0.1.0.data/scripts/{PROGRAM}"}) - names
    assert b".debug_info" not in keeper
    assert b".symtab" not in keeper


def test_a_source_distribution_has_no_program_that_was_built(dist: Path) -> None:
    for archive in dist.glob("*.tar.gz"):
        with tarfile.open(archive) as opened:
            files = [(each.name, file.read(4)) for each in opened if (file := opened.extractfile(each))]
        assert "PKG-INFO" in {Path(name).name for name, _ in files}
        assert not [name for name, start in files if start == b"\x7fELF"]


def test_a_client_is_served_by_what_the_wheels_installed(programs: None, installed: Path) -> None:
    with open_machine() as machine:
        machine.variables["LD_LIBRARY_PATH"] = str(installed / "lib/mpsd/sim/lib")
        del machine.variables["MPSD_PYTHON"]
        program = installed / "bin" / PROGRAM
        assert machine.run("-d", program=program, seconds=60).returncode == 0
        client = machine.counter().ready()
        wait_for("the client in the list", lambda: client.pid in machine.clients())
        pipe = machine.variables["CUDA_MPS_PIPE_DIRECTORY"]
        listed = json.loads(run(installed / "bin/mpsctl", "--json", "clients", env={"CUDA_MPS_PIPE_DIRECTORY": pipe}))
        assert [each["pid"] for each in listed] == [client.pid]
        assert str(ROOT) not in Path(f"/proc/{machine.daemon_pid()}/maps").read_text()


@pytest.mark.parametrize("missing", PROGRAMS)
def test_the_check_names_the_program_that_is_missing(missing: str, installed: Path, tmp_path: Path) -> None:
    environ = {"PATH": "/usr/bin:/bin", "MPSD_BACKEND": "sim", "MPSD_SIM_DIR": str(tmp_path)}
    environ |= {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(tmp_path / "log")}
    (tmp_path / "mpsd.toml").write_text('[sentinel]\nmode = "on"\n')
    environ["MPSD_CONFIG"] = str(tmp_path / "mpsd.toml")
    command = [installed / "bin/mpsd", "check"]
    whole = subprocess.run(command, env=environ, text=True, capture_output=True, check=False)
    assert (whole.returncode, "\nmpsd can serve here" in whole.stdout) == (0, True), whole.stdout
    program = installed / "lib/mpsd" / missing
    program.rename(program.with_suffix(".away"))
    try:
        done = subprocess.run(command, env=environ, text=True, capture_output=True, check=False)
    finally:
        program.with_suffix(".away").rename(program)
    assert done.returncode == 1
    assert f"{program} is missing" in done.stdout
    assert "must be fixed before mpsd can serve here" in done.stdout
