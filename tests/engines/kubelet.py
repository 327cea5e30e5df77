"""A stand-in for a kubelet, as far as device plugins see one: it follows the public interfaces, and no kubelet was used.

Like the kubelet it removes all sockets from its directory when it starts, forgets a plugin's devices when their watch ends,
places a pod by counting, takes the devices that the plugin prefers, and calls Allocate once for a container and
PreStartContainer before each start.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from mpsd_kubernetes import api

SECONDS = 30.0
RESOURCE = "mpsd.io/share"
PLUGIN_POD = "mpsd-kubernetes-x7k2p"
PLUGIN_NAMESPACE = "mpsd"
PLUGIN_VARIABLES = {"POD_NAME": PLUGIN_POD, "POD_NAMESPACE": PLUGIN_NAMESPACE}


class NotAdmitted(Exception):
    """The pod does not start; the text is what its event says."""


class Kubelet:
    """Guards that no device has two containers."""

    def __init__(self, place: Path) -> None:
        self.plugins, self.pod_resources = place / "device-plugins", place / "pod-resources"
        for each in (self.plugins, self.pod_resources):
            each.mkdir()
        self.registered = 0
        self.knows_pods, self.lists = True, 0  # else only a user's, which is named as the plugin's; answers about them
        self.pods: dict[str, list[str]] = {}  # the devices of each
        self._containers: dict[str, Any] = {}  # what Allocate answered
        self._health: dict[str, str] = {}
        self._options: Any = None
        self._channel: Any = None
        self._server: Any = None
        self._lock = threading.Lock()

    # -- its life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        for each in self.plugins.iterdir():
            each.unlink()
        self._server = grpc.server(ThreadPoolExecutor(4))
        path, asked, answer = api.REGISTER
        service, name = path.strip("/").split("/")
        register = api.handlers(service, {name: (asked, answer)}, {name: self._register})
        path, asked, answer = api.LIST_PODS
        service, name = path.strip("/").split("/")
        pods = api.handlers(service, {name: (asked, answer)}, {name: self._list})
        self._server.add_generic_rpc_handlers((register, pods))
        self._server.add_insecure_port(f"unix:{self.plugins}/kubelet.sock")
        self._server.add_insecure_port(f"unix:{self.pod_resources}/kubelet.sock")
        self._server.start()

    def stop(self) -> None:
        if self._channel:
            self._channel.close()
        self._server.stop(None).wait()
        self._health = {}

    # -- pods --------------------------------------------------------------------------------------------------------

    def healthy(self) -> int:
        return sum(health == api.HEALTHY for health in dict(self._health).values())

    def admit(self, pod: str, share: int) -> dict[str, str]:
        """Return the environment of the pod's container.  Raises NotAdmitted."""
        taken = {device for devices in self.pods.values() for device in devices}
        free = [device for device, health in self._health.items() if health == api.HEALTHY and device not in taken]
        if len(free) < share:
            raise NotAdmitted(f"Insufficient {RESOURCE}")
        of = api.messages.ContainerPreferredAllocationRequest(available_deviceIDs=free, allocation_size=share)
        answer = self._call("GetPreferredAllocation", api.messages.PreferredAllocationRequest(container_requests=[of]))
        return self.allocate(pod, list(answer.container_responses[0].deviceIDs))

    def allocate(self, pod: str, devices: list[str]) -> dict[str, str]:
        of = api.messages.ContainerAllocateRequest(devices_ids=devices)
        answer = self._call("Allocate", api.messages.AllocateRequest(container_requests=[of]))
        self.pods[pod], self._containers[pod] = devices, answer.container_responses[0]
        return self.start_container(pod)

    def start_container(self, pod: str) -> dict[str, str]:
        """The first time, and when a container starts again: with the answer that Allocate gave once."""
        if self._options.pre_start_required:
            self._call("PreStartContainer", api.messages.PreStartContainerRequest(devices_ids=self.pods[pod]))
        return dict(self._containers[pod].envs)

    def mounts(self, pod: str) -> list[tuple[str, bool]]:
        return [(mount.host_path, mount.read_only) for mount in self._containers[pod].mounts]

    def remove(self, pod: str) -> None:
        """The containers of the pod have ended."""
        del self.pods[pod], self._containers[pod]

    # -- what a plugin asks, and what it is asked --------------------------------------------------------------------

    def _register(self, request: Any, context: Any) -> Any:
        if (request.version, request.resource_name) != (api.VERSION, RESOURCE):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{request.version}, {request.resource_name}")
        self._options = request.options
        self._channel = grpc.insecure_channel(f"unix:{self.plugins / request.endpoint}")
        threading.Thread(target=self._watch, args=(self._channel,), daemon=True).start()
        self.registered += 1
        return api.messages.Empty()

    def _watch(self, channel: Any) -> None:
        asked, answer = api.CALLS[api.WATCH]
        path = f"/{api.DEVICE_PLUGIN}/{api.WATCH}"
        ways = {"request_serializer": asked.SerializeToString, "response_deserializer": answer.FromString}
        watch = channel.unary_stream(path, **ways)
        try:
            for each in watch(api.messages.Empty(), wait_for_ready=True):
                self._health = {device.ID: device.health for device in each.devices}
        except (grpc.RpcError, ValueError):  # ValueError: the channel was closed
            pass
        if channel is self._channel:
            self._health = {}

    def _call(self, name: str, request: Any) -> Any:
        asked, answer = api.CALLS[name]
        ways = {"request_serializer": asked.SerializeToString, "response_deserializer": answer.FromString}
        try:
            return self._channel.unary_unary(f"/{api.DEVICE_PLUGIN}/{name}", **ways)(request, timeout=SECONDS)
        except grpc.RpcError as exc:
            raise NotAdmitted(f"UnexpectedAdmissionError: {exc.details()}") from None

    def _list(self, request: Any, context: Any) -> Any:
        return api.pods.ListPodResourcesResponse(pod_resources=list(self._resources()))

    def _resources(self) -> Iterator[Any]:
        self.lists += 1
        if not self.knows_pods:
            yield api.pods.PodResources(name=PLUGIN_POD, namespace="of-a-user")
            return
        yield api.pods.PodResources(name=PLUGIN_POD, namespace=PLUGIN_NAMESPACE)
        for pod, devices in list(self.pods.items()):
            of = api.pods.ContainerDevices(resource_name=RESOURCE, device_ids=devices)
            yield api.pods.PodResources(name=pod, namespace="default", containers=[api.pods.ContainerResources(devices=[of])])
