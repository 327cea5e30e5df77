"""`mpsd check` finds problems that would stop mpsd, prints remedies, and returns a reliable exit status."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from mpsd.check import probes
from mpsd.check import report as check
from mpsd.check.containment_proof import Proof, save_proof
from mpsd.check.probes import Finding, Grade, probe_directory
from mpsd.config import paths as places
from mpsd.config.loading import Invocation
from mpsd.config.options import Config, RelayOptions, VendorOptions
from mpsd.config.sentinel_options import SentinelOptions
from mpsd.model.device import ComputeMode, Device
from tests.integration.machine import ROOT

NOTHING = {"MPSD_CONFIG": os.devnull}
PROGRAMS = ("inspector", "keeper", "launcher", "sentinel")
DEVICE = Device(0, "GPU-1", "NVIDIA H200", 143771 << 20, "0000:01:00.0")


def only(findings: list[Finding]) -> Finding:
    (finding,) = findings
    return finding


@pytest.mark.parametrize(
    ("area", "names", "grade"),
    [
        ("log directory", "a", Grade.GOOD),
        ("log directory", "a/b", Grade.BAD),  # one level is made, as by the vendor's
        ("pipe directory", "a", Grade.GOOD),
        ("pipe directory", "a/b", Grade.BAD),
        ("state directory", "a/b/c", Grade.GOOD),
    ],
)
def test_a_directory_that_will_be_made_is_good(area: str, names: str, grade: Grade, tmp_path: Path) -> None:
    finding = next(iter(probe_directory(area, str(tmp_path / names))))
    assert finding.grade is grade
    assert (f"will be made in {tmp_path}" if grade is Grade.GOOD else f"there is no {tmp_path}/a") in finding.found
    assert not (tmp_path / "a").exists()


def test_a_directory_that_others_may_write_to_is_noted(tmp_path: Path) -> None:
    """mpsd tightens it at its start; looking changes nothing."""
    tmp_path.chmod(0o777)
    good, note = list(probe_directory("pipe directory", str(tmp_path)))
    assert (good.grade, note.grade, note.advice) == (Grade.GOOD, Grade.NOTE, f"chmod go-w {tmp_path}")
    assert tmp_path.stat().st_mode & 0o777 == 0o777


@pytest.mark.parametrize(
    ("area", "grade"),
    [("pipe directory", Grade.BAD), ("state directory", Grade.BAD), ("log directory", Grade.NOTE)],
)
def test_a_directory_that_every_user_shares_is_for_logs_alone(area: str, grade: Grade, tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    finding = list(probe_directory(area, str(tmp_path)))[-1]
    assert (finding.grade, "mode 1777" in finding.found) == (grade, True)


def test_a_file_in_the_way_is_bad(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    finding = only(list(probe_directory("log directory", str(tmp_path / "file" / "log"))))
    assert (finding.grade, finding.found) == (Grade.BAD, f"{tmp_path}/file/log: {tmp_path}/file is not a directory")


def test_a_pipe_directory_that_others_cannot_enter_is_noted(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    finding = list(probe_directory("pipe directory", str(tmp_path)))[-1]
    assert (finding.grade, finding.advice) == (Grade.NOTE, f"chmod o+x {tmp_path}")


def test_a_network_file_system_is_bad_for_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "_file_system", lambda path: "nfs4")
    finding = list(probe_directory("pipe directory", str(tmp_path / "pipe")))[-1]
    assert (finding.grade, finding.found) == (Grade.BAD, "on nfs4: a network file system cannot hold sockets")


def test_the_file_system_of_a_path_is_that_of_the_nearest_mount() -> None:
    assert probes._file_system(Path("/proc/self")) == "proc"
    assert probes._file_system(Path("/proc")) == "proc"
    assert probes._file_system(Path("/procedures")) != "proc"


@pytest.mark.root
def test_a_users_mount_with_any_name_ends_no_probe(tmp_path: Path) -> None:
    """The daemon asks for the file system of /dev/shm at its start: a mount of any user would keep it from starting."""
    names = "".join(f"mkdir -p '{name}'; mount -t tmpfs none '{name}'; " for name in ("a\rb", "c\fd e", "f\N{LINE SEPARATOR}g"))
    ask = "from mpsd.check import probes; print(probes.probe_shared_memory().found)"
    words = ["unshare", "--mount", "sh", "-c", f'set -e; cd {tmp_path}; {names} exec {sys.executable} -c "{ask}"']
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("tmpfs")


def test_a_daemon_that_serves_already_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(pipe_directory=str(tmp_path))
    file = tmp_path / f"{places.PROGRAM}.pid"
    for content in ("", "none", "99999999", str(os.getpid())):
        file.write_text(content)
        assert probes.probe_daemon(config).grade is Grade.GOOD
    monkeypatch.setattr(places, "PROGRAM", Path(f"/proc/{os.getpid()}/cmdline").read_text().split("\0")[0].rpartition("/")[2])
    (tmp_path / f"{places.PROGRAM}.pid").write_text(str(os.getpid()))
    assert probes.probe_daemon(config).grade is Grade.NOTE


def test_a_fifo_in_the_place_of_the_pid_file_does_not_hold_the_report(tmp_path: Path) -> None:
    """The FIFO is in another user's pipe directory."""
    os.mkfifo(tmp_path / f"{places.PROGRAM}.pid")
    assert probes.probe_daemon(Config(pipe_directory=str(tmp_path))).grade is Grade.GOOD


def test_no_link_in_the_place_of_the_pid_file_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root's `mpsd check` opened what another user's link named: a watchdog then restarts the machine a minute later."""
    opened: list[str] = []
    monkeypatch.setattr(probes.os, "read", lambda descriptor, most: opened.append(f"{descriptor}") or b"")
    (tmp_path / f"{places.PROGRAM}.pid").symlink_to("/dev/full")
    assert probes.probe_daemon(Config(pipe_directory=str(tmp_path))).grade is Grade.GOOD
    assert opened == []


@pytest.mark.parametrize("number", ["-5", "0", str(2**32), "9" * 31])
def test_no_number_in_the_pid_file_ends_the_report(tmp_path: Path, number: str) -> None:
    (tmp_path / f"{places.PROGRAM}.pid").write_text(number)
    assert probes.probe_daemon(Config(pipe_directory=str(tmp_path))).grade is Grade.GOOD


def test_a_control_program_without_a_server_program_is_bad(tmp_path: Path) -> None:
    program = tmp_path / places.PROGRAM
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    config = Config(vendor=VendorOptions(control=str(program)))
    assert [finding.grade for finding in probes.probe_vendor(config, {})] == [Grade.GOOD, Grade.BAD]
    (tmp_path / "nvidia-cuda-mps-server").write_text("#!/bin/sh\n")
    (tmp_path / "nvidia-cuda-mps-server").chmod(0o755)
    assert [finding.grade for finding in probes.probe_vendor(config, {})] == [Grade.GOOD, Grade.GOOD]


@pytest.mark.parametrize(
    ("mode", "grade"),
    [
        (ComputeMode.DEFAULT, Grade.GOOD),
        (ComputeMode.EXCLUSIVE_PROCESS, Grade.NOTE),
        (ComputeMode.PROHIBITED, Grade.BAD),
    ],
)
def test_a_device_is_judged_by_its_compute_mode(mode: ComputeMode, grade: Grade, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "_read_devices", lambda config: (msgspec.structs.replace(DEVICE, compute_mode=mode),))
    finding = only(list(probes.probe_devices(Config())))
    assert finding.grade is grade
    assert "0: NVIDIA H200, 143771 MiB, GPU-1" in finding.found


def test_a_wedged_gpu_does_not_hold_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    free = threading.Event()
    monkeypatch.setattr(probes, "_read_devices", lambda config: free.wait(20) and ())
    monkeypatch.setattr(probes, "NVML_SECONDS", 0.01)
    finding = only(list(probes.probe_devices(Config())))
    free.set()
    assert (finding.grade, finding.found) == (Grade.BAD, "NVML has not answered for 0 seconds")


def test_what_is_missing_without_privilege_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "_effective_capabilities", lambda: ~(1 << 21))
    finding = probes.probe_privilege()
    assert finding.grade is Grade.NOTE
    assert "CAP_SYS_ADMIN: sending a client's own process id" in finding.found
    monkeypatch.setattr(probes, "_effective_capabilities", lambda: ~0)
    assert probes.probe_privilege().grade is Grade.GOOD


def test_too_few_open_files_are_noted() -> None:
    assert probes.probe_descriptors(Config(relay=RelayOptions(max_connections=10**9))).grade is Grade.NOTE
    assert probes.probe_descriptors(Config(relay=RelayOptions(max_connections=1))).grade is Grade.GOOD


def good_machine(config: Config, environ: object) -> list[Finding]:
    return [Finding("GPUs", Grade.NOTE, "one", "look at it")]


def bad_machine(config: Config, environ: object) -> list[Finding]:
    return [Finding("GPUs", Grade.BAD, "none", "buy one")]


@pytest.mark.parametrize(("machine", "status"), [(good_machine, 0), (bad_machine, 1)])
def test_the_exit_status_is_the_verdict(
    machine: Callable[..., list[Finding]], status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check, "probe_machine", machine)
    assert check.main(Invocation(), NOTHING, as_json=False) == status
    text = capsys.readouterr().out
    assert f"-> {machine(Config(), {})[0].advice}" in text
    assert check.main(Invocation(), NOTHING, as_json=True) == status
    report = json.loads(capsys.readouterr().out)
    assert report["good"] is (status == 0)
    assert report["findings"][-1]["area"] == "GPUs"


def test_every_mistake_of_the_configuration_is_in_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "probe_machine", good_machine)
    (tmp_path / "mpsd.toml").write_text("spare = 1\nbackend = 2\n")
    findings = check.examine(Invocation(config_file=str(tmp_path / "mpsd.toml")), {})
    assert [finding.area for finding in findings if finding.grade is Grade.BAD] == ["configuration", "configuration"]


def test_this_machine_can_be_looked_at() -> None:
    """On any machine, every probe answers and none raises."""
    areas = [finding.area for finding in check.examine(Invocation(), {**NOTHING, "PATH": "/usr/bin"})]
    assert set(areas) >= {"configuration", "vendor program", "GPUs", "/dev/shm", "pid namespace", "privilege", "open files"}


@pytest.mark.root
def test_a_sentinel_that_is_configured_is_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = Config(sentinel=SentinelOptions(mode="on"))
    monkeypatch.setattr(places, "state_directory", lambda *facts: tmp_path)
    there, tested = probes.probe_sentinel(config, {})
    assert (there.grade, tested.grade, tested.found) == (Grade.GOOD, Grade.NOTE, "not tested here yet")
    assert not list(probes.probe_sentinel(Config(), {}))
    for why, grade in (("", Grade.GOOD), ("it hung", Grade.NOTE)):
        save_proof(tmp_path, Proof("580.1", "H200", "6.8", why))
        assert list(probes.probe_sentinel(config, {}))[1].grade is grade


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_program_that_is_missing_is_named(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A wheel once lacked them all, and the report said that mpsd can serve."""
    config = Config(sentinel=SentinelOptions(mode="on"))
    monkeypatch.setattr(probes, "own_program", lambda each: tmp_path / each)
    for each in PROGRAMS:
        (tmp_path / each).touch(0o755)
    assert only(list(probes.probe_programs(config))).grade is Grade.GOOD
    (tmp_path / name).chmod(0o644)
    finding = only(list(probes.probe_programs(config)))
    assert (finding.grade, finding.found) == (Grade.BAD, f"{tmp_path}/{name} is not executable")
    (tmp_path / name).unlink()
    assert only(list(probes.probe_programs(config))).found == f"{tmp_path}/{name} is missing"


@pytest.mark.root
@pytest.mark.parametrize(
    ("script", "grade"),
    [("exit 0", Grade.GOOD), ("echo 'mpsd-launcher: no' >&2; exit 125", Grade.NOTE), (None, Grade.BAD)],
)
def test_whether_vendor_daemons_can_be_private_is_tried(tmp_path: Path, script: str | None, grade: Grade) -> None:
    program = tmp_path / "launcher"
    if script is not None:
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    finding = only(list(probes.probe_private(program)))
    assert finding.grade is grade
    assert ("mpsd-launcher: no" in finding.found) == (grade is Grade.NOTE)
