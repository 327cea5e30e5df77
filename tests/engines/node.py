"""A node of Kubernetes: a machine with two simulated GPUs, a stand-in for its kubelet, and the device plugin."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mpsd_client import calls

from tests.engines.kubelet import PLUGIN_VARIABLES, Kubelet
from tests.integration.client import Client
from tests.integration.machine import ROOT, Machine, open_machine
from tests.integration.process import wait_for

PLUGIN = ROOT / "clients/kubernetes"
CLIENT_PATH = os.pathsep.join([str(PLUGIN), str(ROOT / "clients/python")])
PROGRAM = (sys.executable, "-m", "mpsd_kubernetes")


class Node:
    """A machine with two GPUs, its kubelet, and the plugin's process."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.kubelet = machine, Kubelet(machine.place)
        self._plugin: subprocess.Popen[bytes] | None = None
        self.output = machine.place / "plugin.log"

    def start_plugin(self, program: Sequence[str] = PROGRAM, devices: int = 200) -> None:
        words = ["--plugins", str(self.kubelet.plugins), "--pod-resources", f"{self.kubelet.pod_resources}/kubelet.sock"]
        words += ["--pipe", str(self.machine.pipe), "--tidy", "0.2", "--settle", "1", "--wait", "2", "--mib-per-percent", "100"]
        registered = self.kubelet.registered
        with self.output.open("ab") as output:
            environment = {**self.machine.variables, "PYTHONPATH": CLIENT_PATH, **PLUGIN_VARIABLES}
            self._plugin = subprocess.Popen([*program, *words], env=environment, stdin=subprocess.DEVNULL, stderr=output)
        self.machine.addition(self._plugin)
        wait_for("the plugin", lambda: self.kubelet.registered > registered and self.kubelet.healthy() == devices, 30.0)

    def kill_plugin(self) -> None:
        assert self._plugin
        self._plugin.kill()
        self._plugin.wait()

    def run(self, pod: str, share: int) -> Client:
        return self.container(self.kubelet.admit(pod, share))

    def container(self, environment: dict[str, str]) -> Client:
        """A process with the environment that the plugin gave."""
        assert environment.pop("NVIDIA_VISIBLE_DEVICES").startswith("GPU-")
        return self.machine.counter(**environment)

    def leases(self) -> list[tuple[float, str]]:
        with self.machine.mpsd() as mpsd:
            return sorted((lease.sm_percent, lease.gpus[0]) for lease in mpsd.pages(calls.lease_list()) if lease.gpus)

    def sms(self, environment: dict[str, str]) -> int:
        return int(self.machine.client("smcount", **environment).wait("sms")["seen"])


@contextmanager
def open_node() -> Iterator[Node]:
    with open_machine() as machine:
        machine.start(MPSD_SIM_GPUS="2")
        made = Node(machine)
        made.kubelet.start()
        try:
            yield made
        finally:
            made.kubelet.stop()
