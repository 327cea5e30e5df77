"""The Kubernetes DRA driver: its control daemon's start script, word for word, in a container that sees the host's root."""

import json
import sys
from pathlib import Path

import pytest

from tests.integration.client import Client
from tests.integration.host import DRIVER_ROOT, Host
from tests.integration.machine import PATH, PROGRAM
from tests.integration.process import wait_for

pytestmark = [pytest.mark.root, pytest.mark.slow]
TEMPLATE = """\
set -e
RUN="{run}"
$RUN "nvidia-cuda-mps-control -d"
$RUN "echo set_default_active_thread_percentage 50 | nvidia-cuda-mps-control"
$RUN "echo set_default_device_pinned_mem_limit {uuid} 10Gi | nvidia-cuda-mps-control" || echo refused
$RUN "echo set_default_device_pinned_mem_limit {uuid} 10240M | nvidia-cuda-mps-control"
echo "startup complete" > {root}/var/log/nvidia-mps/startup.log
tail -n +1 -f {root}/var/log/nvidia-mps/control.log
"""
CHROOT = f"chroot {DRIVER_ROOT} sh -c"
MPSCTL = str(Path(sys.executable).with_name("mpsctl"))
NO_SHELL_THERE = "sh -c"  # GKE's COS: the host's programs, found through PATH


def begin(host: Host, run: str, path: str) -> str:
    """Run the container's command, and return the UUID of its GPU."""
    uuid = host.uuid()
    script = TEMPLATE.format(run=run, uuid=uuid, root=DRIVER_ROOT)
    output = host.begin("/bin/sh", "-c", script, environment={"PATH": path, "CUDA_VISIBLE_DEVICES": uuid})
    wait_for("the end of the start", lambda: host.file("/var/log/nvidia-mps/startup.log").exists(), 20.0)
    wait_for("the log", lambda: "Starting control daemon" in output.read_text())
    return uuid


@pytest.mark.parametrize(
    ("run", "path"),
    [(CHROOT, PATH), (NO_SHELL_THERE, f"{DRIVER_ROOT}/usr/bin:{PATH}")],
    ids=["chroot", "no shell in the driver root"],
)
def test_the_start_script_comes_to_its_end_and_the_limits_hold(host: Host, run: str, path: str) -> None:
    uuid = begin(host, run, path)
    assert host.file("/var/log/nvidia-mps/startup.log").read_text() == "startup complete\n"
    assert host.ask("get_default_active_thread_percentage") == "50.0\n"
    assert host.ask(f"get_default_device_pinned_mem_limit {uuid}") == "10G\n"
    pod = host.client("smcount", CUDA_MPS_PIPE_DIRECTORY="/tmp/nvidia-mps", CUDA_VISIBLE_DEVICES=uuid)
    assert pod.wait("sms")["seen"] == 66
    assert host.client("memlimit", "12000").error() == 2


def test_a_limit_in_words_that_the_vendor_would_misread_is_refused_and_stops_the_script(host: Host) -> None:
    """10Gi, which Kubernetes writes: the vendor's takes it for 10G or for nothing, and the script goes on."""
    begin(host, CHROOT, PATH)
    done = host.shell(f'{CHROOT} "echo set_default_device_pinned_mem_limit 0 10Gi | nvidia-cuda-mps-control"')
    assert done.returncode == 1
    assert done.stdout.startswith("Memory limit not set: ")


def test_clients_of_other_users_are_served_without_the_multi_user_option(host: Host) -> None:
    """Pods that run as another user; the driver's own option is for the vendor's daemon."""
    begin(host, CHROOT, PATH)
    assert host.client("smcount").status() == 0
    assert host.client("smcount", uid=1000).status() == 0


def test_quit_in_the_driver_root_ends_it(host: Host) -> None:
    begin(host, CHROOT, PATH)
    assert host.shell(f'{CHROOT} "echo quit | nvidia-cuda-mps-control"').returncode == 0
    assert not [line for line in host.processes() if "nvidia-cuda-mps" in line and "/bin/sh -c" not in line]


CLAIM = """\
set -e
cd /var/lib/claims/{claim}
mount --bind pipe {root}/tmp/nvidia-mps
mount --bind log {root}/var/log/nvidia-mps
mount -t proc proc {root}/proc
chroot {root} nvidia-cuda-mps-control -d
echo started
exec tail -f /dev/null
"""


def start_claim(host: Host, claim: str, *more: str) -> None:
    """Start the claim's daemon as its container does, with its directories mounted over those of the driver's root."""
    host.shell(f"mkdir -p /var/lib/claims/{claim}/pipe /var/lib/claims/{claim}/log /tmp/nvidia-mps /var/log/nvidia-mps")
    script = CLAIM.format(claim=claim, root=DRIVER_ROOT)
    output = host.begin("unshare", "--mount", *more, "sh", "-c", script)
    said = wait_for("the end of the start", lambda: output.read_text(), 20.0)
    assert said == "started\n"


def counter_of(host: Host, claim: str) -> Client:
    return host.counter(CUDA_MPS_PIPE_DIRECTORY=f"/var/lib/claims/{claim}/pipe").ready()


@pytest.mark.parametrize("namespaces", [(), ("--pid", "--fork")], ids=["one pid namespace", "several"])
def test_two_claims_on_a_node_have_a_daemon_each(host: Host, namespaces: tuple[str, ...]) -> None:
    """The second found `already running`: both have the path /tmp/nvidia-mps, each in its own mount namespace."""
    host.shell("mount -t tmpfs none /var/lib")
    for claim in ("a", "b"):
        start_claim(host, claim, *namespaces)
    for counter in [counter_of(host, claim) for claim in ("a", "b")]:
        counter.goes_on()
    assert len(list(host.file("/run/mpsd").iterdir())) == 2


def test_a_claims_daemon_that_starts_again_in_a_new_namespace_finds_its_state(host: Host) -> None:
    host.shell("mount -t tmpfs none /var/lib")
    for claim in ("a", "b"):
        start_claim(host, claim)
    counter = counter_of(host, "a")
    pipe = "/var/lib/claims/a/pipe"
    pid = host.file(f"{pipe}/{PROGRAM}.pid").read_text().strip()
    host.shell(f"kill -KILL {pid}; while grep -q '^State:.[^Z]' /proc/{pid}/status; do :; done")
    start_claim(host, "a")
    counter.goes_on()
    listed = host.run(MPSCTL, "--json", "clients", environment={"CUDA_MPS_PIPE_DIRECTORY": pipe})
    assert [client["pid"] for client in json.loads(listed.stdout)] == [counter.wait("ready")["pid"]]
