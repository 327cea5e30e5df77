"""Two GPUs: limits of one of them, placement, faults on the second one with innocents on both, NCCL during a fault."""

import itertools
import json
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from mpsd_client import Client as Mpsd
from mpsd_client import Selector, calls, values

from tests.gpu.comparison import figures
from tests.gpu.comparison.clients import Client, end_all
from tests.gpu.comparison.pytorch import has_torch
from tests.gpu.comparison.stage import Stage
from tests.gpu.comparison.system import System, SystemFailed

TRIALS = 5
MODES = ("oob_write", "trap")
MIB = 1 << 20
PERCENT, LIMIT_MIB = 25, 4096
READY_SECONDS = 20.0
SETTLE_SECONDS = 8.0
CULPRIT_UID = 1000
AS_CULPRIT = ("setpriv", f"--reuid={CULPRIT_UID}", f"--regid={CULPRIT_UID}", "--clear-groups")
PAIR = Path(__file__).resolve().parents[2] / "torch/nccl_pair.py"
PAIR_SECONDS = 90.0
RATE_GOAL = 0.95
# NVLink multicast stays off: it needs a service that a lent machine may lack.
NCCL = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2"}


def run(stage: Stage) -> None:
    system = stage.mpsd
    system.renew()
    if not (gpus := stage.two_gpus("two GPUs")):
        return
    _limits(stage, system, gpus)
    innocents = _innocents(stage, system, gpus)
    for mode in MODES:
        for who, visible, device in (
            ("a client of GPU 1 by ordinal", "1", 0),
            ("a client with contexts on both", "0,1", 1),
            ("a client of GPU 1 by UUID", gpus[1], 0),
        ):
            _faults(stage, system, gpus, innocents, mode, who, visible, device)
    end_all(innocents)
    system.clients.clear()
    _nccl(stage, gpus)


def _visible(system: System, gpu: str, **more: str) -> dict[str, str]:
    return system.environment() | {"CUDA_VISIBLE_DEVICES": gpu} | more


def _limits(stage: Stage, system: System, gpus: Sequence[str]) -> None:
    """What a lease for GPU 1 gives by each way in which its client can name the GPU."""
    for name, visible in (("ordinal 1", "1"), ("ordinal 0", "0"), ("its UUID", gpus[1]), ("nothing", "0,1")):
        token = secrets.token_hex(16)
        with Mpsd(system.pipe / "mpsd.sock") as mpsd:
            selector = Selector.of_token(token)
            memory = {gpus[1]: LIMIT_MIB * MIB}
            lease = mpsd.ask(calls.lease_create("two", selector, gpus=[gpus[1]], sm_percent=PERCENT, memory_bytes=memory))
            client = system.spawn([str(system.programs / "quota"), "--json"], _visible(system, visible, MPSD_LEASE=token))
            client.wait(READY_SECONDS)
            mpsd.ask(calls.lease_release(lease.id))
        said = client.events("quota")
        got = f"{said[0]['sms']} SMs, {said[0]['mib']} MiB" if said else client.fate
        stage.add(f"lease for GPU 1, {PERCENT} % and {LIMIT_MIB} MiB; CUDA_VISIBLE_DEVICES: {name}", mpsd=got)
        system.clients.remove(client)


def _counter(system: System, visible: str) -> Client:
    client = system.spawn(
        [str(system.programs / "counter"), "--json", "--seconds", "600", "--ms", "100", "--device", str(visible.count(","))],
        _visible(system, visible),
    )
    if not client.wait_for("ready", READY_SECONDS):
        raise SystemFailed(f"a counter on GPU {visible} did not start: {client.fate}")
    return client


def _innocents(stage: Stage, system: System, gpus: Sequence[str]) -> list[Client]:
    """Start root's clients: one on each GPU by ordinal, one with contexts on both, one on each by UUID. Return the domain of
    each."""
    wanted = {"0": set(gpus), "1": set(gpus), "0,1": set(gpus), gpus[0]: {gpus[0]}, gpus[1]: {gpus[1]}}
    innocents = [_counter(system, visible) for visible in wanted]
    with Mpsd(system.pipe / "mpsd.sock") as mpsd:
        domains = {domain.name: set(domain.gpus) for domain in mpsd.ask(calls.domain_list()).items}
        found = {client.pid: domains.get(client.domain or "", set()) for client in mpsd.ask(calls.client_list()).items}
    right = [found.get(client.pid) == gpus_of for client, gpus_of in zip(innocents, wanted.values(), strict=True)]
    stage.keep("domains", {name: sorted(each) for name, each in domains.items()})
    stage.add(
        "clients by ordinal 0, 1, and 0,1 in a domain of both GPUs; by UUID in a domain of that GPU alone",
        mpsd=figures.of(sum(right), len(right)), goal="all", met=all(right),
        remark=", ".join(sorted(f"{name}: {len(each)} GPU" for name, each in domains.items())),
    )  # fmt: skip
    return innocents


def _faults(
    stage: Stage,
    system: System,
    gpus: Sequence[str],
    innocents: Sequence[Client],
    mode: str,
    who: str,
    visible: str,
    device: int,
) -> None:
    trials = stage.trials(TRIALS)
    one, named, right_gpu, living, raw = 0, 0, 0, 0, []
    argv = [*AS_CULPRIT, str(system.programs / "faulter"), mode, "--json", "--device", str(device)]
    for _ in range(trials):
        system.wait_for_spare(SETTLE_SECONDS)
        known = {incident.number for incident in _incidents(system)}
        culprit = system.spawn(argv, _visible(system, visible))
        culprit.wait(READY_SECONDS)
        found = _settled(system, known)
        one += len(found) == 1
        named += len(found) == 1 and found[0].culprit is not None and found[0].culprit.pid == culprit.pid
        right_gpu += [incident.gpu for incident in found] == [gpus[1]]
        since = time.monotonic_ns()
        living += sum(client.wait_for("tick", READY_SECONDS, since) is not None for client in innocents)
        raw.append({"pid": culprit.pid, "fate": culprit.fate, "incidents": [str(incident) for incident in found]})
        system.clients.remove(culprit)
    stage.keep(f"{mode} {who}", raw)
    for line in raw:
        stage.say(json.dumps(line)[:1500])
    of = [figures.of(count, trials) for count in (one, named, right_gpu)]
    everybody = trials * len(innocents)
    stage.add(
        f"{mode} on GPU 1 by {who}: one incident, its culprit, its GPU",
        mpsd=", ".join(of), goal="all", met=one == named == right_gpu == trials and living == everybody,
        remark=f"others that count on: {figures.of(living, everybody)}",
    )  # fmt: skip


# -- NCCL ----------------------------------------------------------------------------------------------------------------


def _nccl(stage: Stage, gpus: Sequence[str]) -> None:
    """Run two processes that see both GPUs; with mpsd, clients of another user fault on GPU 1 at the same time."""
    if not has_torch(stage):
        return
    rates: dict[str, float] = {}
    for system in stage.both:
        system.renew()
        pair = _pair(stage, system)
        rates[system.name] = min(client.events("ready")[0]["gb_per_second"] for client in pair)
        if system is stage.mpsd:
            _beside(stage, system, gpus, pair)
        for client in pair:
            client.release()
        for client in pair:
            client.wait(READY_SECONDS)
        if fates := [client.fate for client in pair if client.fate != "done"]:
            stage.add(f"NCCL, {system.name}: the end of two processes", met=False, remark=", ".join(fates))
        end_all(pair)
        system.clients.clear()
    theirs, ours = rates["vendor"], rates["mpsd"]
    stage.add(
        "NCCL all-reduce of 512 MiB over two GPUs", vendor=f"{theirs:.0f} GB/s", mpsd=f"{ours:.0f} GB/s",
        ratio=figures.times(ours / theirs), goal=f">= {RATE_GOAL}", met=ours >= RATE_GOAL * theirs,
    )  # fmt: skip


def _pair(stage: Stage, system: System) -> list[Client]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    argv = [str(stage.options.torch_python), str(PAIR)]
    variables: Mapping[str, str] = system.environment() | NCCL | {"MASTER_PORT": port}
    pair = [system.spawn(argv, {**variables, "RANK": rank}, has_input=True) for rank in ("0", "1")]
    for client in pair:
        if not client.wait_for("ready", PAIR_SECONDS):
            raise SystemFailed(f"{system.name}: NCCL: {client.trouble}")
    return pair


def _beside(stage: Stage, system: System, gpus: Sequence[str], pair: Sequence[Client]) -> None:
    trials = stage.trials(TRIALS)
    went_on, hurt = 0, []
    for mode in itertools.islice(itertools.cycle(MODES), trials):
        system.wait_for_spare(SETTLE_SECONDS)
        culprit = system.spawn([*AS_CULPRIT, str(system.programs / "faulter"), mode, "--json"], _visible(system, gpus[1]))
        culprit.wait(READY_SECONDS)
        system.clients.remove(culprit)
        since = time.monotonic_ns()
        goes_on = all(client.wait_for("round", READY_SECONDS, since) is not None for client in pair)
        went_on += goes_on
        hurt += [] if goes_on else [f"{mode}: {', '.join(client.trouble for client in pair)}"]
    stage.add(
        "NCCL beside a fault of another user on GPU 1: both go on, each sum exact",
        mpsd=figures.of(went_on, trials), goal="all", met=went_on == trials, remark="; ".join(hurt),
    )  # fmt: skip


# -- incidents -----------------------------------------------------------------------------------------------------------


def _incidents(system: System) -> Sequence[values.Incident]:
    with Mpsd(system.pipe / "mpsd.sock") as mpsd:
        return mpsd.ask(calls.fault_list()).items


def _settled(system: System, known: set[int]) -> list[values.Incident]:
    """The incidents since, once nothing more is expected of them."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        found = [incident for incident in _incidents(system) if incident.number not in known]
        if (found and all(incident.is_settled for incident in found)) or time.monotonic() > deadline:
            return found
        time.sleep(0.1)
