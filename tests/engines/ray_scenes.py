"""Programs of a Ray user, and a Ray of several nodes that they run on.  Run with a Python that has ray and mpsd_client.

The first line of stdin has the nodes' environments, a list in JSON; each later one is a call, `[scene, {argument: value}]`,
answered with a line: `["ok", result]` or `["error", text]`.
"""

import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from typing import Any

import ray
from mpsd_client import Arena, Client, ErrorCode, Layout, Refused, TensorSpec, adopt, calls
from mpsd_client.ray import ShareError, share
from ray.cluster_utils import Cluster
from ray.exceptions import RayError

NODE = {"num_cpus": 8, "num_gpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
ON = "node-{}"  # a resource of each node, to place a task on it
SMS = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT


def on(number: int) -> dict[str, float]:
    return {ON.format(number): 0.001}


def sms() -> int:
    """Return the SMs that this process may use."""
    driver, device, context, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
    assert driver.cuInit(0) == 0
    assert driver.cuDeviceGet(ctypes.byref(device), 0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert driver.cuDeviceGetAttribute(ctypes.byref(count), SMS, device) == 0
    return count.value


def leases() -> list[tuple[str, float]]:
    with Client() as mpsd:
        return sorted((lease.name.rpartition("-")[2], lease.sm_percent) for lease in mpsd.pages(calls.lease_list()))


@ray.remote
def leases_on() -> list[tuple[str, float]]:
    return leases()


@ray.remote(num_gpus=0.3)
@share()
def count() -> tuple[int, int, list[tuple[str, float]]]:
    return sms(), os.getpid(), leases()


@ray.remote(num_gpus=0.3)
@share(wait=0.5)
def count_soon() -> int:
    return sms()


@ray.remote(num_gpus=0.3)
@share()
def count_twice() -> Any:
    yield sms()
    yield os.getpid()


@ray.remote(num_gpus=0)
@share()
def count_without() -> int:
    return sms()


@ray.remote(num_gpus=0.5, max_restarts=-1, max_task_retries=0)
@share(memory=4 << 30)
class Counter:
    """An actor whose state is a number in an arena; it goes on where it ended."""

    def __init__(self, arena: str) -> None:
        self.arena = adopt_or_create(arena)
        self.number = self.arena["number"]

    def add(self) -> tuple[int, int, int]:
        """Return the number, the pid, the SMs."""
        number = int.from_bytes(self.number.tobytes(), "little") + 1
        self.number.frombytes(number.to_bytes(8, "little"))
        return number, os.getpid(), sms()


def adopt_or_create(name: str) -> Arena:
    try:
        return adopt(name, wait=10)
    except Refused as refused:
        if refused.code != ErrorCode.NO_SUCH_ARENA:
            raise
    arena = Arena.create(name, capacity=2 << 20)
    block = arena.allocate(8)
    arena.commit(Layout({"number": TensorSpec(block.offset, "int64", (), ())}))
    arena["number"].frombytes(bytes(8))
    return arena


def run_task(node: int) -> Any:
    return ray.get(count.options(resources=on(node)).remote())


def run_soon(node: int) -> Any:
    return ray.get(count_soon.options(resources=on(node)).remote())


def run_generator() -> Any:
    return [ray.get(each) for each in count_twice.options(resources=on(0)).remote()]


def run_without_a_gpu() -> Any:
    return ray.get(count_without.remote())


def run_many(count_of: int) -> Any:
    """Return the SMs of tasks that are more than fit on both nodes at once."""
    return [got[0] for got in ray.get([count.remote() for _ in range(count_of)])]


def see(node: int) -> Any:
    return ray.get(leases_on.options(resources=on(node)).remote())


def wait_for_no_lease(node: int) -> Any:
    until = time.monotonic() + 30
    while (found := see(node)) and time.monotonic() < until:
        time.sleep(0.1)
    return found


actors: dict[str, Any] = {}


def make_actor(name: str, node: int) -> Any:
    actors[name] = Counter.options(resources=on(node)).remote(name)
    return ray.get(actors[name].add.remote())


def add(name: str) -> Any:
    return ray.get(actors[name].add.remote())


def kill_process(name: str) -> Any:
    """`kill -9` of the actor's process; the answer of the restarted one."""
    os.kill(add(name)[1], signal.SIGKILL)
    while True:
        try:
            return add(name)
        except ray.exceptions.ActorUnavailableError:
            time.sleep(0.1)


def end_actor(name: str) -> Any:
    ray.kill(actors.pop(name))


def make_standby(name: str, node: int, every: float) -> Any:
    """Start the example's actor on the node, as long as that is there; return what its first call says."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
    from ray_standby import Counter as WithStandby

    [there] = [each["NodeID"] for each in ray.nodes() if ON.format(node) in each["Resources"] and each["Alive"]]
    strategy = NodeAffinitySchedulingStrategy(there, soft=True)
    actors[name] = WithStandby.options(scheduling_strategy=strategy).remote(name, every)
    return add(name)


def add_after_loss(name: str) -> Any:
    """The first answer of the actor that another node has started."""
    while True:
        try:
            return add(name)
        except ray.exceptions.RayActorError:  # the node is not known to be lost yet, or the actor starts
            time.sleep(0.2)


def turn_loopback_on() -> None:
    """Ray finds no other address in a private network namespace, and reaches no other machine."""
    request = struct.pack("16sH14x", b"lo", 1)  # IFF_UP
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, 0x8914, request)  # SIOCSIFFLAGS


def run_program(path: str) -> Any:
    """Return what a user's program prints."""
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=100, check=False)
    return done.stdout


def main() -> None:
    environments = json.loads(sys.stdin.readline())
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray writes to stdout too
    turn_loopback_on()
    cluster = Cluster()
    for number, environment in enumerate(environments):
        cluster.add_node(**NODE, env_vars=environment, resources={ON.format(number): 1})
    os.environ["RAY_ADDRESS"] = cluster.address
    ray.init(log_to_driver=False, logging_level="ERROR")
    print(json.dumps(["ok", len(ray.nodes())]), file=answers, flush=True)
    for line in sys.stdin:
        scene, arguments = json.loads(line)
        try:
            answer = ["ok", globals()[scene](**arguments)]
        except (RayError, ShareError) as exc:
            answer = ["error", str(exc)]
        print(json.dumps(answer), file=answers, flush=True)
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
