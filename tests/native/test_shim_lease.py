"""The shim's lease where mpsd answers, but not as it should: limits that were asked for are never left out unsaid."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from tests.native.test_shim_hooks import built, run  # noqa: F401

Run = Callable[..., "subprocess.CompletedProcess[str]"]
ACTIVE = {"id": 1, "state": "active", "sm_percent": 25.0}
QUEUED = {"id": 1, "state": "queued", "sm_percent": 25.0}
PRINTS_LIMIT = """
import ctypes
ctypes.CDLL("libcuda.so.1").cuInit(0)
getenv = ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_char_p
print(getenv(b"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT").decode())
"""
FULL = {"code": 7, "name": "TOO_MANY", "message": "come again"}


class Mpsd:
    """Answers each method with its error, or else its result, after so many seconds."""

    def __init__(self, path: Path) -> None:
        self.said: list[str] = []
        self.errors: dict[str, dict[str, Any]] = {}
        self.results: dict[str, dict[str, Any]] = {"lease.create": ACTIVE, "lease.get": QUEUED, "device.list": {"items": []}}
        self.seconds = 0.0
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path.parent.mkdir()
        self.listener.bind(str(path))
        self.listener.listen(8)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        try:
            while True:
                peer = self.listener.accept()[0]
                threading.Thread(target=self._answer, args=(peer,), daemon=True).start()
        except OSError:
            return

    def _answer(self, peer: socket.socket) -> None:
        with peer:
            while data := peer.recv(1 << 16):
                _, number, method, _ = msgpack.unpackb(data)
                self.said.append(method)
                time.sleep(0.0 if method == "hello" else self.seconds)
                try:
                    peer.send(msgpack.packb([1, number, self.errors.get(method), self.results.get(method, {})]))
                except BrokenPipeError:
                    return


@pytest.fixture
def mpsd(short_dir: Path) -> Iterator[Mpsd]:
    made = Mpsd(short_dir / "pipe/mpsd.sock")
    yield made
    made.listener.shutdown(socket.SHUT_RDWR)
    made.listener.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MPSD_LEASE_SM_PERCENT", "30%"),  # as mpsctl takes it
        ("MPSD_LEASE_SM_PERCENT", "0"),
        ("MPSD_LEASE_MEMORY", "8 G"),
        ("MPSD_LEASE_MEMORY", "0.5"),
        ("MPSD_LEASE_WAIT", "20s"),
        ("MPSD_LEASE_NAME", "x" * 129),
        ("MPSD_LEASE_DOMAIN", "x" * 16),
    ],
)
def test_a_limit_that_is_not_understood_is_no_limit_less(mpsd: Mpsd, run: Run, name: str, value: str) -> None:  # noqa: F811
    done = run("shim_found", "run", MPSD_REQUIRED="1", **{name: value})
    assert (done.returncode, done.stdout, mpsd.said) == (5, "init(0): 805\n", [])
    done = run("shim_found", "run", **{name: value})
    assert (done.returncode, done.stdout) == (0, "PASS\n")


@pytest.mark.parametrize("devices", ["refused", "none", "without a name", "too many"])
def test_no_lease_lacks_the_memory_limit_that_was_asked_for(mpsd: Mpsd, run: Run, devices: str) -> None:  # noqa: F811
    items: dict[str, list[dict[str, str]]] = {"without a name": [{"uuid": "GPU-1"}, {}], "too many": [{"uuid": "GPU-1"}] * 65}
    mpsd.results["device.list"] = {"items": items.get(devices, [])}
    if devices == "refused":
        mpsd.errors["device.list"] = FULL
    done = run("shim_found", "run", MPSD_REQUIRED="1", MPSD_LEASE_MEMORY="8G")
    assert (done.returncode, done.stdout) == (5, "init(0): 805\n")
    assert "lease.create" not in mpsd.said


def test_a_lease_with_its_memory_limit_is_taken(mpsd: Mpsd, run: Run) -> None:  # noqa: F811
    mpsd.results["device.list"] = {"items": [{"uuid": "GPU-1"}, {"uuid": "GPU-2", "ordinal": 1}]}
    assert run("shim_found", "run", MPSD_REQUIRED="1", MPSD_LEASE_MEMORY="8G").stdout == "PASS\n"
    assert "lease.create" in mpsd.said


@pytest.mark.parametrize("gpus", [1, 20])
def test_each_gpu_has_the_limit_where_mpsd_is_not_root(mpsd: Mpsd, run: Run, short_dir: Path, gpus: int) -> None:  # noqa: F811
    """Those after the sixteenth had none."""
    mpsd.results["device.list"] = {"items": [{"uuid": f"GPU-{number}"} for number in range(gpus)]}
    (short_dir / "pipe/control").symlink_to("../domain/control")
    done = run(sys.executable, "-c", PRINTS_LIMIT, MPSD_LEASE_MEMORY="8G")
    limits = dict(each.split("=") for each in done.stdout.strip().split(","))
    assert limits == {str(number): "8192M" for number in range(max(gpus, 16))}


@pytest.mark.parametrize("domain", ["own", "shared"])
def test_no_program_that_requires_a_domain_of_its_own_shares_one(mpsd: Mpsd, run: Run, short_dir: Path, domain: str) -> None:  # noqa: F811
    """mpsd has none for it without root, which was in the log alone."""
    (short_dir / "pipe/control").symlink_to("../domain/control")
    done = run("shim_found", "run", MPSD_REQUIRED="1", MPSD_LEASE_DOMAIN=domain)
    assert (done.returncode, done.stdout) == ((5, "init(0): 805\n") if domain == "own" else (0, "PASS\n"))
    assert run("shim_found", "run", MPSD_LEASE_DOMAIN=domain).stdout == "PASS\n"


@pytest.mark.slow
def test_the_wait_for_a_lease_ends_however_slow_the_answers_are(mpsd: Mpsd, run: Run) -> None:  # noqa: F811
    """Forty of them were waited for, each for up to 5 s."""
    mpsd.results["lease.create"], mpsd.seconds = QUEUED, 1.0
    done = run("shim_found", "run", MPSD_REQUIRED="1", MPSD_LEASE_SM_PERCENT="25")
    assert (done.returncode, done.stdout) == (5, "init(0): 805\n")
    assert mpsd.said.count("lease.get") <= 4
