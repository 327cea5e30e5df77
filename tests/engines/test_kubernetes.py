"""The device plugin for Kubernetes, with a stand-in for the kubelet and two simulated GPUs; a pod is a client process."""

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mpsd_client import Selector, calls

from tests.engines.kubelet import NotAdmitted
from tests.engines.node import PLUGIN, PROGRAM, Node, open_node
from tests.engines.transcripts import Transcript
from tests.integration.machine import ROOT
from tests.integration.process import state_of, wait_for
from tests.integration.test_stopped_clients import stopped_by_a_signal

pytestmark = pytest.mark.root
TENANT = 64401  # the uid of another tenant's pod
ALERTS = ROOT / "clients/grafana/alerts.yml"


@pytest.fixture
def node(programs: None) -> Iterator[Node]:
    with open_node() as made:
        made.start_plugin()
        yield made


def test_a_pod_has_its_part_until_it_ends(node: Node) -> None:
    environment = node.kubelet.admit("a", 25)
    assert node.sms(environment) == 32
    assert node.kubelet.mounts("a") == [(str(node.machine.pipe), True), ("/dev/shm", False)]
    with node.machine.mpsd() as mpsd:
        [lease] = mpsd.pages(calls.lease_list())
    assert lease.memory_bytes == {environment["NVIDIA_VISIBLE_DEVICES"]: 2500 << 20}
    assert lease.gpus == (environment["NVIDIA_VISIBLE_DEVICES"],)
    node.kubelet.remove("a")
    wait_for("the release", lambda: node.leases() == [])


def test_pods_fill_one_gpu_and_then_the_other_and_no_more(node: Node) -> None:
    first, second = sorted(node.machine.uuids(MPSD_SIM_GPUS="2"))
    for pod in ("a", "b", "c"):
        node.kubelet.admit(pod, 40)
    assert node.leases() == [(40.0, first), (40.0, first), (40.0, second)]
    with pytest.raises(NotAdmitted, match="Insufficient"):
        node.kubelet.admit("d", 90)
    with pytest.raises(NotAdmitted, match=r"a container has a part of one GPU, and this one would have 20 % of .*, 50 % of "):
        node.kubelet.admit("e", 70)
    node.kubelet.admit("f", 60)
    assert node.leases()[-1] == (60.0, second)


def test_a_part_that_mpsd_has_not_is_refused_with_the_reason(node: Node) -> None:
    """The kubelet does not know of leases of other programs."""
    with node.machine.mpsd() as mpsd:
        mpsd.ask(calls.lease_create("another", Selector.of_uid(4711), sm_percent=80))
    with pytest.raises(NotAdmitted, match=r"UnexpectedAdmissionError: mpsd: no room for 30 % of GPU-.* within 2 s"):
        node.kubelet.admit("a", 30)
    assert node.leases() == []


def test_without_mpsd_no_pod_begins_and_no_container_starts_again(node: Node) -> None:
    node.kubelet.admit("a", 30)
    node.machine.kill_daemon()
    wait_for("unhealthy devices", lambda: node.kubelet.healthy() == 0)
    with pytest.raises(NotAdmitted, match="Insufficient"):
        node.kubelet.admit("b", 30)
    with pytest.raises(NotAdmitted, match="mpsd cannot be reached"):
        node.kubelet.start_container("a")
    with pytest.raises(NotAdmitted, match="mpsd cannot be reached"):  # the kubelet did not see it yet
        node.kubelet.allocate("c", [f"{node.machine.uuids(MPSD_SIM_GPUS='2')[0]}::99"])
    node.machine.start(MPSD_SIM_GPUS="2")
    wait_for("healthy devices", lambda: node.kubelet.healthy() == 200)
    node.container(node.kubelet.start_container("a")).ready()


def test_a_user_whose_own_domain_stands_still_keeps_no_pod_out(node: Node) -> None:
    """It stops one client while another one faults, for as long as it likes: all devices were unhealthy until it had enough."""
    node.kubelet.admit("a", 30)
    paused, victim = node.machine.counter(uid=TENANT).ready(), node.machine.counter(uid=TENANT).ready()
    with stopped_by_a_signal(paused.pid):
        wait_for("it to be stopped", lambda: state_of(paused.pid) == "T")
        node.machine.client("faulter", "misaligned", "--after", "0.3", "--linger", "60", uid=TENANT).ready()
        node.machine.wait_for_journal("client.stopped", seconds=30.0)
        with node.machine.mpsd() as mpsd:
            wait_for("the warning", lambda: any("stands still" in each for each in mpsd.ask(calls.health()).problems))
        node.container(node.kubelet.start_container("a")).ready()
        node.container(node.kubelet.admit("b", 30)).ready()
    assert victim.error() != 0


def test_a_container_whose_lease_has_gone_does_not_start(node: Node) -> None:
    """As after a restart of the node: the kubelet starts the container with the answer that it had stored."""
    node.kubelet.admit("a", 30)
    with node.machine.mpsd() as mpsd:
        [lease] = mpsd.pages(calls.lease_list())
        mpsd.ask(calls.lease_release(lease.id))
    with pytest.raises(NotAdmitted, match=r"mpsd has no lease of 30 % of GPU-.*: delete the pod"):
        node.kubelet.start_container("a")


def test_a_lease_that_root_of_a_container_named_like_a_part_is_none(node: Node) -> None:
    """It has the plugin's uid, as here, but its leases are for its own processes: the container started, without a lease."""
    node.kubelet.admit("a", 30)
    with node.machine.mpsd() as mpsd:
        [lease] = mpsd.pages(calls.lease_list())
        mpsd.ask(calls.lease_release(lease.id))
        mpsd.ask(calls.lease_create(lease.name, Selector.of_token("t" * 32), lease.gpus, sm_percent=1, owner_uid=0))
    with pytest.raises(NotAdmitted, match=r"mpsd has no lease of 30 % of GPU-.*: delete the pod"):
        node.kubelet.start_container("a")


def test_a_kubelet_that_does_not_know_its_pods_yet_ends_no_lease(node: Node) -> None:
    """As after its restart, until the API server has told them: the plugin released the leases of all running containers."""
    environment = node.kubelet.admit("a", 30)
    made = node.leases()
    time.sleep(1.5)  # the lease is older than --settle
    node.kubelet.knows_pods, before = False, node.kubelet.lists
    wait_for("looks at pods", lambda: node.kubelet.lists > before + 2)
    assert node.leases() == made
    node.kubelet.knows_pods = True
    node.container(environment).ready()
    node.kubelet.remove("a")
    wait_for("the release", lambda: node.leases() == [])


def test_a_restart_of_the_plugin_disturbs_no_pod(node: Node) -> None:
    client = node.run("a", 30).ready()
    node.kubelet.admit("b", 20)
    node.kill_plugin()
    wait_for("no devices", lambda: node.kubelet.healthy() == 0)
    node.kubelet.remove("b")  # of which the plugin learns later
    node.start_plugin()
    wait_for("the release", lambda: [percent for percent, _ in node.leases()] == [30.0])
    client.goes_on()
    node.container(node.kubelet.start_container("a"))


def test_a_restart_of_the_kubelet_disturbs_no_pod(node: Node) -> None:
    """It removes the plugin's socket, and waits to be registered with."""
    client = node.run("a", 30).ready()
    before = node.kubelet.registered
    node.kubelet.stop()
    node.kubelet.start()
    wait_for("the plugin", lambda: node.kubelet.registered > before and node.kubelet.healthy() == 200, 30.0)
    client.goes_on()
    assert [percent for percent, _ in node.leases()] == [30.0]
    node.kubelet.admit("b", 30)


def test_devices_of_a_pod_that_ended_are_leased_to_the_next_at_once(node: Node) -> None:
    node.kubelet.admit("a", 100)
    devices = node.kubelet.pods["a"]
    node.kubelet.remove("a")
    environment = node.kubelet.allocate("b", devices)
    assert node.sms(environment) == 132
    assert [percent for percent, _ in node.leases()] == [100.0]


def test_a_plugin_in_another_pid_namespace_offers_nothing(node: Node) -> None:
    """mpsd does not count it as an operator there; its leases would serve only processes of root."""
    node.kill_plugin()
    node.start_plugin(["unshare", "--pid", "--fork", "--kill-child", *PROGRAM], devices=0)
    why = "no container can begin: this process is no operator for mpsd: run it as root, with hostPID: true"
    wait_for("the reason", lambda: why in node.output.read_text())
    assert node.kubelet.healthy() == 0


def test_the_session_of_a_first_user(node: Node) -> None:
    """`kubelet>` stands for what a kubelet does for `kubectl apply` and `kubectl delete`."""
    transcript = Transcript("kubernetes")

    def root(typed: str) -> None:
        words = [str(Path(sys.executable).with_name("mpsctl")), *typed.split()[1:]]
        done = subprocess.run(words, env=node.machine.variables, capture_output=True, text=True, check=False)
        transcript.add("root#", typed, (done.stdout + done.stderr).replace(str(node.machine.pipe), "/run/nvidia-mps"))

    def kubelet(typed: str) -> dict[str, str]:
        """admit NAME SHARE, or start NAME."""
        _, pod, *share = typed.split()
        environment: dict[str, str] = {}
        try:
            environment = node.kubelet.admit(pod, int(*share)) if share else node.kubelet.start_container(pod)
            answer = "".join(f"{name}={value}\n" for name, value in sorted(environment.items()))
        except NotAdmitted as exc:
            answer = str(exc)
        transcript.add("kubelet>", typed, answer.replace(str(node.machine.pipe), "/run/nvidia-mps"))
        return environment

    root("mpsctl health")
    environment = kubelet("admit counter 30")
    node.container(environment).ready()
    root("mpsctl leases")
    kubelet("admit large 80")
    kubelet("admit larger 90")
    node.kubelet.remove("counter")
    transcript.add("kubelet>", "delete counter", "")
    wait_for("the release", lambda: len(node.leases()) == 1)
    root("mpsctl leases")
    node.machine.kill_daemon()
    wait_for("unhealthy devices", lambda: node.kubelet.healthy() == 0)
    transcript.add("root#", "pkill -9 -f nvidia-cuda-mps-control", "")
    kubelet("admit late 10")
    kubelet("start large")
    node.machine.start(MPSD_SIM_GPUS="2")
    transcript.check()


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the programs of an environment with what the Containerfile installs, and the schemas of Kubernetes, 22 MB."""
    venv = tmp_path_factory.mktemp("kubernetes") / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    wheel = next(dist.glob("mpsd_client-*.whl"))
    words = [venv / "bin/python", "-m", "pip", "-q", "--disable-pip-version-check", "install"]
    pinned = ["--no-deps", "--require-hashes", "-r", PLUGIN / "constraints.txt"]
    for each in (pinned, ["--no-deps", "--no-build-isolation", wheel, PLUGIN], ["kubernetes-validate==1.37.0"]):
        done = subprocess.run([*words, *each], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return venv / "bin"


@pytest.mark.deadline(300)
def test_the_program_is_complete(installed: Path) -> None:
    words = [installed / "mpsd-kubernetes", "--help"]
    done = subprocess.run(words, capture_output=True, text=True, cwd="/", env={}, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    page = (PLUGIN / "README.md").read_text()
    options = set(re.findall(r"--[a-z-]+", done.stdout)) - {"--help"}
    assert [option for option in options if f"`{option}" not in page] == []


@pytest.mark.deadline(300)
@pytest.mark.parametrize("version", ["1.28", "1.37"])
def test_the_manifests_have_the_form_that_kubernetes_wants(installed: Path, tmp_path: Path, version: str) -> None:
    """Without what belongs to the Prometheus operator, whose schema the validator lacks; it was validated once by hand."""
    for each in sorted((PLUGIN / "manifests").glob("*.yaml")):
        documents = [part for part in each.read_text().split("\n---\n") if "monitoring.coreos.com" not in part]
        (tmp_path / each.name).write_text("\n---\n".join(documents))
        words = [installed / "kubernetes-validate", "--strict", "-k", version, tmp_path / each.name]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{each.name}: {done.stdout}{done.stderr}"


@pytest.mark.deadline(300)
def test_prometheus_finds_the_node_by_its_monitor_and_under_the_job_of_the_alerts(installed: Path) -> None:
    """Monitor, service and plugin name each other's labels and ports, which no schema shows."""
    kinds: dict[str, Any] = {}
    for each in ("plugin", "monitoring"):
        read = "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(sys.stdin))))"
        text = (PLUGIN / f"manifests/{each}.yaml").read_text()
        done = subprocess.run([installed / "python", "-c", read], input=text, capture_output=True, text=True, check=True)
        kinds |= {document["kind"]: document for document in json.loads(done.stdout)}
    monitor, service, pod = kinds["ServiceMonitor"]["spec"], kinds["Service"], kinds["DaemonSet"]["spec"]["template"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    [endpoint], [port], [container] = monitor["endpoints"], service["spec"]["ports"], pod["spec"]["containers"]
    [of_container] = container["ports"]
    assert (endpoint["port"], port["targetPort"], port["port"]) == (
        port["name"],
        of_container["name"],
        of_container["containerPort"],
    )
    job = service["metadata"]["labels"][monitor["jobLabel"]]
    assert set(re.findall(r'job="([^"]*)"', ALERTS.read_text())) == {job}


@pytest.mark.skipif(not shutil.which("promtool"), reason="needs promtool: apt-get install prometheus")
def test_prometheus_takes_the_alerts() -> None:
    done = subprocess.run(["promtool", "check", "rules", "--lint-fatal", ALERTS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{ALERTS.read_text().count('- alert:')} rules found" in done.stdout + done.stderr


def test_the_messages_are_the_public_ones(tmp_path: Path) -> None:
    """Bytes on the wire, by hand from the field numbers of the public interface."""
    from mpsd_kubernetes import api

    request = api.messages.RegisterRequest(version="v1beta1", endpoint="e", resource_name="r/s")
    request.options.pre_start_required = True
    assert request.SerializeToString() == b"\x0a\x07v1beta1\x12\x01e\x1a\x03r/s\x22\x02\x08\x01"
    answer = api.messages.ContainerAllocateResponse(envs={"A": "b"})
    answer.mounts.add(container_path="/c", host_path="/h", read_only=True)
    assert answer.SerializeToString() == b"\x0a\x06\x0a\x01A\x12\x01b\x12\x0a\x0a\x02/c\x12\x02/h\x18\x01"
