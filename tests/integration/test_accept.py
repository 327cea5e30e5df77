"""kmod/accept, the operator's script, on machines without the module: it refuses, or reports that faults are not contained."""

import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import sys

import pytest

from mpsd.faults.sources import kmod_records
from tests.integration.machine import ROOT, Machine

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.path.exists("/dev/mpsd-fault"), reason="the module is loaded here"),
]
MPSCTL = shutil.which("mpsctl", path=os.path.dirname(sys.executable))
TRIAL_SECONDS = 60.0


def accept(machine: Machine, *words: str) -> "subprocess.CompletedProcess[str]":
    path = f"{os.path.dirname(MPSCTL or '')}:{machine.variables['PATH']}"
    return subprocess.run(
        [sys.executable, str(ROOT / "kmod/accept"), *words],
        env=machine.variables | {"PATH": path}, capture_output=True, text=True, timeout=TRIAL_SECONDS, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def script():
    loader = importlib.machinery.SourceFileLoader("accept", str(ROOT / "kmod/accept"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("accept", loader))
    sys.modules["accept"] = module  # where dataclasses look for it
    loader.exec_module(module)
    return module


def test_the_layout_is_the_daemons(script):
    assert (script.RECORD.size, script.GET_INFO) == (kmod_records.RECORD.size, kmod_records.GET_INFO)


@pytest.mark.parametrize(
    ("records", "said"),
    [
        pytest.param([], "no record", id="silence"),
        pytest.param([(1, 7, 1, 0), (2, 7, 0, 0)], "named, absorbed, stopped after 1.5 s", id="its whole story"),
        pytest.param([(1, 7, 1, 0), (1, 7, 0, 7)], "named, not absorbed: too many windows", id="one too many"),
        pytest.param([(1, 8, 1, 0)], "named ANOTHER process, absorbed", id="somebody else"),
    ],
)
def test_what_the_module_said_is_told(script, records, said):
    packed = b"".join(
        script.RECORD.pack(128, 1, kind, 0, 0, at * 1_500_000_000, *[0] * 5, bytes(16), tgid, *[0] * 11, action, why, 0, b"")
        for at, (kind, tgid, action, why) in enumerate(records)
    )
    found = tuple(script.read_record(packed, at) for at in range(0, len(packed), script.RECORD.size))
    assert script.Trial("copy", True, True, 7, found, "", False).said == said


def test_nothing_is_tried_where_the_module_is_not_loaded(machine):
    done = accept(machine)
    assert (done.returncode, done.stdout) == (2, "")
    assert "nothing was tried: /dev/mpsd-fault is not there" in done.stderr


@pytest.mark.slow
def test_without_the_module_nothing_is_contained(machine):
    """Each class, so that none of them is contained by accident: the innocent dies with the faulter."""
    machine.start()
    done = accept(machine, "--without-module", "--mode", "oob_write", "--mode", "copy", "--mode", "busy_write")
    assert done.returncode == 1, done
    assert done.stdout.count("NOT CONTAINED") == 3
    assert "0 of 3 contained; promised and not: oob_write, copy, busy_write" in done.stdout


@pytest.mark.slow
def test_a_machine_that_is_not_drained_is_left_alone(machine):
    machine.start()
    machine.counter().ready()
    done = accept(machine, "--without-module", "--mode", "oob_write")
    assert (done.returncode, done.stdout) == (2, "")
    assert "not drained" in done.stderr
