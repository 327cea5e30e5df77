"""The service that the kubelet calls, and its registration."""

import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from mpsd_client import MpsdError

from mpsd_kubernetes import api
from mpsd_kubernetes.leases import Leases, NoLease
from mpsd_kubernetes.shares import UNITS, Part, device_id, parse, preferred

RESOURCE = "mpsd.io/share"
SOCKET = "mpsd-share.sock"  # in the kubelet's directory
KUBELET = "kubelet.sock"
SHARED_MEMORY = "/dev/shm"
_CALL_SECONDS = 10.0
_THREADS = 8  # each watch occupies one until it ends
_WATCH_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Places:
    plugins: Path  # the kubelet's directory of device plugins
    pod_resources: Path  # its socket
    pipe: Path  # mpsd's pipe directory, on the node and in containers
    own_pod: str  # the plugin's own, as NAMESPACE/NAME; "": the plugin does not run in a pod


def say(text: str) -> None:
    print(f"mpsd-kubernetes: {text}", file=sys.stderr, flush=True)


class Plugin:
    """Guards that a container gets a part only with a lease, and that a lease ends soon after its container."""

    def __init__(self, places: Places, leases: Leases) -> None:
        self._places, self._leases = places, leases
        self._gpus: dict[str, bool] = {}  # by UUID: whether a container may start there
        self._trouble = ""  # why the plugin does not know the health of the GPUs
        self._changed = threading.Condition()
        self._allocating = threading.Lock()  # else two containers at a time could get the same device
        self._server: Any = None
        self._kubelet: tuple[int, int] | None = None  # the socket of the kubelet that has registered this plugin

    # -- calls of the kubelet ---------------------------------------------------------------------------------------

    def get_options(self, request: Any, context: Any) -> Any:
        return options()

    def watch(self, request: Any, context: Any) -> Iterator[Any]:
        shown = None
        while context.is_active():
            with self._changed:
                if shown == self._gpus:
                    self._changed.wait(_WATCH_SECONDS)
                    continue
                shown = dict(self._gpus)
            yield api.messages.ListAndWatchResponse(devices=list(_devices(shown)))

    def prefer(self, request: Any, context: Any) -> Any:
        answers = [
            preferred(each.available_deviceIDs, list(each.must_include_deviceIDs), each.allocation_size)
            for each in request.container_requests
        ]
        of_container = api.messages.ContainerPreferredAllocationResponse
        return api.messages.PreferredAllocationResponse(container_responses=[of_container(deviceIDs=ids) for ids in answers])

    def allocate(self, request: Any, context: Any) -> Any:
        """Lease a part for each container, or refuse the whole pod if a container gets no lease."""
        made = []
        with self._allocating, _refusing(context):
            for each in request.container_requests:
                part = parse(each.devices_ids)
                made.append(self._container(part, self._leases.make(part)))
                say(f"{part}: leased")
        return api.messages.AllocateResponse(container_responses=made)

    def pre_start(self, request: Any, context: Any) -> Any:
        """Refuse to start a container that has lost its lease, as after a restart of the node."""
        with _refusing(context):
            self._leases.check(parse(request.devices_ids))
        return api.messages.PreStartContainerResponse()

    def _container(self, part: Part, token: str) -> Any:
        pipe = str(self._places.pipe)
        mount = api.messages.Mount
        return api.messages.ContainerAllocateResponse(
            envs={"MPSD_LEASE": token, "CUDA_MPS_PIPE_DIRECTORY": pipe, "NVIDIA_VISIBLE_DEVICES": part.gpu},
            mounts=[
                mount(container_path=pipe, host_path=pipe, read_only=True),
                mount(container_path=SHARED_MEMORY, host_path=SHARED_MEMORY),
            ],
        )

    # -- the main thread --------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Ask mpsd for the health of the GPUs, and pass each change on to the kubelet."""
        try:
            found = self._leases.healthy_gpus()
        except (NoLease, MpsdError, OSError) as exc:
            found = dict.fromkeys(self._gpus, False)
            if self._trouble != str(exc):
                self._trouble = str(exc)
                say(f"no container can begin: {exc}")
        else:
            self._trouble = ""
        with self._changed:
            if found != self._gpus:
                say("; ".join(f"{gpu} {_word(is_well).lower()}" for gpu, is_well in sorted(found.items())) or "no GPU")
                self._gpus = found
                self._changed.notify_all()

    def tidy(self) -> None:
        """Release the leases of containers that no longer exist, if the kubelet and mpsd answer.

        A kubelet that has just started does not know its pods yet; then the plugin's own pod is missing from its answer too.
        """
        if not self._allocating.acquire(blocking=False):
            return  # a lease that still waits for room must not be released, although its container does not exist yet
        try:
            answer = api.call(str(self._places.pod_resources), api.LIST_PODS, api.pods.ListPodResourcesRequest(), _CALL_SECONDS)
            known = (f"{pod.namespace}/{pod.name}" for pod in answer.pod_resources)
            if self._places.own_pod and self._places.own_pod not in known:
                return
            used = [parse([each]) for each in api.device_ids(answer, RESOURCE)]
            for part in self._leases.release_others(used):
                say(f"{part}: released")
        except (MpsdError, OSError, ValueError, grpc.RpcError) as exc:
            say(f"leases are not tidied: {_why(exc)}")
        finally:
            self._allocating.release()

    def keep_registered(self) -> None:
        """Serve and register; repeat both after a restart of the kubelet, which removes all sockets.  Raises grpc.RpcError."""
        socket = self._places.plugins / SOCKET
        kubelet = _identity(self._places.plugins / KUBELET)
        if kubelet is None or (kubelet == self._kubelet and socket.exists()):
            return
        self.close()
        with suppress(FileNotFoundError):
            socket.unlink()
        self._server = grpc.server(ThreadPoolExecutor(_THREADS))
        functions = {
            "GetDevicePluginOptions": self.get_options,
            api.WATCH: self.watch,
            "GetPreferredAllocation": self.prefer,
            "Allocate": self.allocate,
            "PreStartContainer": self.pre_start,
        }
        self._server.add_generic_rpc_handlers((api.handlers(api.DEVICE_PLUGIN, api.CALLS, functions),))
        self._server.add_insecure_port(f"unix:{socket}")
        self._server.start()
        request = api.messages.RegisterRequest(
            version=api.VERSION, endpoint=SOCKET, resource_name=RESOURCE, options=options()
        )
        api.call(str(self._places.plugins / KUBELET), api.REGISTER, request, _CALL_SECONDS)
        self._kubelet = kubelet
        say(f"registered {RESOURCE}")

    def close(self) -> None:
        if self._server is not None:
            self._server.stop(None).wait()
            self._server = None


@contextmanager
def _refusing(context: Any) -> Iterator[None]:
    """Turn errors into the status and text that the kubelet shows in the pod's events."""
    try:
        yield
    except (NoLease, MpsdError, OSError, ValueError) as exc:
        say(f"refused: {_why(exc)}")
        context.abort(grpc.StatusCode.UNAVAILABLE, f"mpsd: {_why(exc)}")


def options() -> Any:
    return api.messages.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)


def _devices(gpus: dict[str, bool]) -> Iterator[Any]:
    for gpu, is_well in sorted(gpus.items()):
        for unit in range(UNITS):
            yield api.messages.Device(ID=device_id(gpu, unit), health=_word(is_well))


def _word(is_well: bool) -> str:
    return api.HEALTHY if is_well else api.UNHEALTHY


def _why(error: BaseException) -> str:
    return str(error.details()) if isinstance(error, grpc.RpcError) and hasattr(error, "details") else str(error)


def _identity(path: Path) -> tuple[int, int] | None:
    with suppress(OSError):
        found = os.stat(path)
        return found.st_ino, found.st_ctime_ns
    return None
