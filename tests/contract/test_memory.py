"""libcuda's answers when memory is placed and guarded: the simulator's, and with $MPSD_CONTRACT_CONTROL the machine's own.

Both are compared with the same record; a row that was never tried on the device reports that when it differs there.
"""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.contract.programs import ROOT, SIMULATOR

HERE = Path(__file__).parent
RECORD = tomllib.loads((HERE / "memory_580.toml").read_text())
CLIENT = HERE / "memory_client.py"
GUARDS = ROOT / "tests/clients/bin/guards"
REAL_GUARDS = ROOT / "tests/clients/bin-cuda/guards"  # make -C tests/clients CUDA=/usr/local/cuda OUT=bin-cuda
TRY_SECONDS = 60.0
UNHEARD = ("event", "client", "pid", "time", "monotonic_ns", "what", "write_us", "write_us_again", "is_at_mib")


def drivers() -> list[str]:
    return ["sim", "vendor"] if "MPSD_CONTRACT_CONTROL" in os.environ else ["sim"]


@pytest.fixture(name="driver", params=drivers())
def driver_to_ask(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name == "sim" and not (SIMULATOR / "lib/libcuda.so.1").exists():
        pytest.skip("sim: not built")
    return name


@pytest.fixture(name="environment")
def environment_of_the_driver(driver: str, tmp_path: Path) -> dict[str, str]:
    """Without MPS in either case: the answers were the same with it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "MPSD_"))}
    kept["CUDA_MPS_PIPE_DIRECTORY"] = str(tmp_path / "nowhere")
    if driver == "sim":
        kept |= {"MPSD_SIM_DIR": str(tmp_path / "machine"), "MPSD_SIM_FAST": "1", "LD_LIBRARY_PATH": f"{SIMULATOR}/lib"}
    return kept


def ask(command: list[str], environment: Mapping[str, str]) -> Any:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TRY_SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def differences(kind: str, found: Mapping[str, Any]) -> list[str]:
    """Each row that differs, with where the record has it from."""
    rows = [(name, value, how) for how in ("seen", "assumed") for name, value in RECORD[kind][how].items()]
    assert sorted(name for name, _, _ in rows) == sorted(found), "the record and the tries are not the same"
    return [f"{name}: {found[name]!r}, {how}: {value!r}" for name, value, how in rows if found[name] != value]


def test_placing_memory_is_answered_as_recorded(environment: dict[str, str]) -> None:
    assert differences("memory", ask([sys.executable, "-I", str(CLIENT)], environment)) == []


@pytest.fixture(name="guards")
def guards_of_the_driver(driver: str) -> str:
    """The program of that name; the device's has to be there."""
    if driver == "sim":
        subprocess.run(["make", "-s", "-j2", "-C", ROOT / "tests/clients"], check=True)
    return str(GUARDS if driver == "sim" else REAL_GUARDS)


@pytest.mark.slow
@pytest.mark.deadline(300)
def test_guards_are_taken_as_recorded(guards: str, environment: dict[str, str]) -> None:
    """Each try runs in a separate process; of a value that comes twice in one, the last counts."""
    names = subprocess.run([guards, "--list"], env=environment, capture_output=True, text=True, check=True).stdout.split()
    answers = {name: ask([guards, name, "--json"], environment) for name in names}
    told = {name: {key: value for key, value in each.items() if key not in UNHEARD} for name, each in answers.items()}
    assert differences("guards", told) == []
