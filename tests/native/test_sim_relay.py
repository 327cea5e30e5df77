"""The shape that a relay relies on: identity by credentials of a message, a descriptor handed over, then nothing more."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.native.sim_fixtures import bare_machine, built_programs, machine_with_daemon, needs_root  # noqa: F401
from tests.native.sim_machine import Machine, eventually

RELAY = Path(__file__).with_name("sim_relay.py")


@contextlib.contextmanager
def relay(mps: Machine, mode: str = "relay") -> Iterator[str]:
    """A directory with a `control` that leads to the daemon's."""
    public = mps.place / "public"
    public.mkdir()
    command = [sys.executable, RELAY, public, mps.pipe / "control", mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            yield str(public)
        finally:
            process.kill()


@needs_root
@pytest.mark.parametrize("uid", [0, 1000])
def test_a_client_behind_a_relay_is_known_by_its_own_pid_and_uid(mps: Machine, uid: int) -> None:
    with relay(mps) as public:
        client = mps.client("hold", uid=uid, CUDA_MPS_PIPE_DIRECTORY=public)
        client.wait_for("ready")
        server = mps.server()
        assert mps.ask(f"get_client_list {server}") == f"{client.pid}\n"
        assert f"NEW CLIENT {client.pid} from user {uid}: Server already exists\n" in mps.log("control.log")


@needs_root  # to send another process's credentials
def test_a_client_outlives_the_relay(mps: Machine) -> None:
    with relay(mps) as public:
        client = mps.client("counter", "--seconds", "1", CUDA_MPS_PIPE_DIRECTORY=public)
        client.wait_for("ready")
    assert client.end()["event"] == "end"


@needs_root
def test_a_client_in_a_pid_namespace_of_its_own_is_known_by_its_outer_pid(mps: Machine) -> None:
    with relay(mps) as public:
        environment = mps.library_environment(CUDA_MPS_PIPE_DIRECTORY=public)
        command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", Path(__file__).parents[1] / "clients/bin/hold"]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as outer:
            try:
                server = mps.server()
                listed = eventually(lambda: mps.ask(f"get_client_list {server}").strip())
                children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
                assert [listed] == children
                assert mps.ask("ps").splitlines()[1].split()[4] != "4026531836"
            finally:
                outer.kill()


def test_a_relay_that_closes_makes_the_client_run_without_mps(mps: Machine) -> None:
    with relay(mps, "close") as public:
        mps.ask("set_default_active_thread_percentage 10")
        assert mps.run("smcount", CUDA_MPS_PIPE_DIRECTORY=public)["seen"] == 132
    assert mps.ask("get_server_list") == ""


@needs_root  # to send another process's credentials
def test_a_relay_that_closes_after_the_probe_is_error_805(mps: Machine) -> None:
    with relay(mps, "refuse") as public:
        refused = mps.run("counter", CUDA_MPS_PIPE_DIRECTORY=public)
    assert (refused["call"], refused["code"]) == ("cuInit", 805)


@needs_root  # to send another process's credentials
def test_commands_pass_the_relay_too(mps: Machine) -> None:
    with relay(mps) as public:
        done = mps.control(line="get_default_client_priority", CUDA_MPS_PIPE_DIRECTORY=public)
        assert (done.returncode, done.stdout) == (0, "0\n")
