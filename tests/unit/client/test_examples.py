"""The examples run as their first lines describe, each as a program of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from mpsd.wire.incidents import incident_facts
from tests.unit.api.fake_daemon import FakeDaemon, open_daemon
from tests.unit.api.fake_incidents import proven

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "clients/python/examples"
PAGE = (ROOT / "docs/python.md").read_text()


async def run(daemon: FakeDaemon, short_dir: Path, name: str, *arguments: str) -> str:
    """Return the program's output."""
    daemon.listen(short_dir)
    with trio.fail_after(20):
        done = await trio.run_process(
            [sys.executable, str(EXAMPLES / name), *arguments],
            env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(short_dir)},
            capture_stdout=True,
            stderr=subprocess.STDOUT,
        )
    return done.stdout.decode()


def test_every_example_is_tried_and_explained() -> None:
    tried = {"lease_a_share.py", "who.py", "watch.py", "culprits.py", "keep_renewing.py"}
    tried |= {"count_starts.py", "keep_a_model.py"}  # need memory: tests/integration/test_python_arena.py, and a GPU
    tried |= {"count_service.py"}  # needs services: tests/integration/test_count_service.py
    tried |= {"ray_standby.py"}  # needs Ray: tests/engines/test_ray.py
    tried |= {"two_ranks.py"}  # needs images: tests/integration/test_image_epochs.py
    tried |= {"diffusion.py", "train_resnet.py"}  # need PyTorch: test_torch_examples.py
    tried |= {"with_cupy.py", "with_jax.py"}  # need arrays: tests/integration/test_array_examples.py
    assert {path.name for path in EXAMPLES.glob("*.py")} == tried
    assert not [name for name in tried if name not in PAGE]


async def test_a_share_is_leased_for_a_command(tmp_path: Path, short_dir: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        text = "import os; print('token of', len(os.environ['MPSD_LEASE']))"
        said = await run(daemon, short_dir, "lease_a_share.py", "--sm-percent", "30", "--", sys.executable, "-c", text)
        assert "lease 3 is active" in said
        assert "token of 32" in said
        assert 3 not in daemon.fakes.leases.made


async def test_a_share_that_does_not_fit_is_no_start(tmp_path: Path, short_dir: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        with pytest.raises(subprocess.CalledProcessError) as failed:
            await run(daemon, short_dir, "lease_a_share.py", "--sm-percent", "90", "--", "false")
        assert failed.value.returncode == 75
        assert b"do not fit" in failed.value.stdout


async def test_who_lists_clients_and_the_queue(tmp_path: Path, short_dir: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        said = await run(daemon, short_dir, "who.py")
        assert said.splitlines()[1].split() == ["586", "1000", "running", "d1", "1", "30.0"]
        assert "waits, number 1: 587: no share is free" in said


async def test_watch_tells_what_happens(tmp_path: Path, short_dir: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish_to_the_first, daemon)
            said = await run(daemon, short_dir, "watch.py", "--seconds", "0.2", "domain.*")
    assert 'domain.ready {"domain": "d1"}' in said


async def publish_to_the_first(daemon: FakeDaemon) -> None:
    while not daemon.bus.subscribers:  # noqa: ASYNC110
        await trio.sleep(0.005)
    daemon.bus.publish("domain.ready", {"domain": "d1"})
    daemon.bus.publish("fault.culprit", incident_facts(proven()))


async def test_culprits_are_told(tmp_path: Path, short_dir: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish_to_the_first, daemon)
            said = await run(daemon, short_dir, "culprits.py", "--seconds", "0.2")
    assert said.splitlines()[0] == "fault 1: mmu in d1, proven, 1 hurt"
    assert said.splitlines()[-1] == "fault 1: it was python3[586] of user 1000"


async def test_the_name_of_a_culprit_does_not_control_the_terminal(tmp_path: Path, short_dir: Path) -> None:
    async def publish(daemon: FakeDaemon) -> None:
        while not daemon.bus.subscribers:  # noqa: ASYNC110
            await trio.sleep(0.005)
        daemon.bus.publish("fault.culprit", {"number": 2, "culprit": {"program": "a\x1b[2J\x9bH\u202e", "pid": 7, "uid": 1000}})

    async with open_daemon(tmp_path) as daemon:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish, daemon)
            said = await run(daemon, short_dir, "culprits.py", "--seconds", "0.2")
    assert said.splitlines()[-1] == r"fault 2: it was a\x1b[2J\x9bH\u202e[7] of user 1000"


async def test_a_lease_is_kept_while_its_holder_lives(tmp_path: Path, short_dir: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        daemon.fakes.has_every_process = True
        said = await run(daemon, short_dir, "keep_renewing.py", "--seconds", "0.1")
        assert said.splitlines() == ["lease 3 is active", "lease 3 is given back"]
