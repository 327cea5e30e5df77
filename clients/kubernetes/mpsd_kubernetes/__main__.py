"""The program: a device plugin that serves until it is ended."""

import argparse
import os
import signal
import threading
import time
from pathlib import Path

import grpc

from mpsd_kubernetes.leases import Leases
from mpsd_kubernetes.plugin import Places, Plugin, say

LOOK_SECONDS = 1.0


def run() -> None:
    raise SystemExit(main())


def main() -> int:
    asked = _options()
    places = Places(asked.plugins, asked.pod_resources, asked.pipe, _own_pod())
    leases = Leases(str(asked.pipe / "mpsd.sock"), asked.processes, asked.mib_per_percent, asked.wait, asked.settle)
    plugin = Plugin(places, leases)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    tidied = time.monotonic()
    while not ended.is_set():
        plugin.look()
        try:
            plugin.keep_registered()
        except grpc.RpcError as exc:
            say(f"the kubelet does not register it: {exc.details() if hasattr(exc, 'details') else exc}")
            return 1  # what the interface asks for; the DaemonSet starts it again
        if time.monotonic() - tidied >= asked.tidy:
            plugin.tidy()
            tidied = time.monotonic()
        ended.wait(LOOK_SECONDS)
    plugin.close()
    return 0


def _own_pod() -> str:
    """Return the plugin's pod.  A name alone does not tell it from a user's pod in another namespace."""
    name = os.environ.get("POD_NAME", "")
    if name and "POD_NAMESPACE" not in os.environ:
        raise SystemExit("mpsd-kubernetes: POD_NAME is set, POD_NAMESPACE is not: set both, as manifests/plugin.yaml does")
    return f"{os.environ['POD_NAMESPACE']}/{name}" if name else ""


def _options() -> argparse.Namespace:
    options = argparse.ArgumentParser(prog="mpsd-kubernetes", description=__doc__)
    options.add_argument("--plugins", type=Path, default="/var/lib/kubelet/device-plugins", help="the kubelet's directory")
    options.add_argument("--pod-resources", type=Path, default="/var/lib/kubelet/pod-resources/kubelet.sock")
    options.add_argument("--pipe", type=Path, default="/run/nvidia-mps", help="mpsd's pipe directory, on the node and here")
    options.add_argument("--processes", type=int, default=1, help="GPU processes of each container; each gets an equal part")
    options.add_argument("--mib-per-percent", type=int, default=0, help="GPU memory for each percent; 0: no limit")
    options.add_argument("--wait", type=float, default=15.0, help="seconds that a new container may wait for room")
    options.add_argument("--tidy", type=float, default=10.0, help="seconds between looks for leases without containers")
    options.add_argument("--settle", type=float, default=60.0, help="seconds after which the kubelet must list a new container")
    return options.parse_args()


if __name__ == "__main__":
    run()
