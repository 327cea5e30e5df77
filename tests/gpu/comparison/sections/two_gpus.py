"""Two GPUs in one domain: limits of one of them, and faults of a client on the second one beside innocents on both."""

import json
import secrets
import time
from collections.abc import Sequence

from mpsd_client import Client as Mpsd
from mpsd_client import Selector, calls, values

from tests.gpu.comparison import figures
from tests.gpu.comparison.clients import Client, end_all
from tests.gpu.comparison.stage import Stage
from tests.gpu.comparison.system import System, SystemFailed

TRIALS = 5
MIB = 1 << 20
PERCENT, LIMIT_MIB = 25, 4096
READY_SECONDS = 20.0
SETTLE_SECONDS = 8.0
CULPRIT_UID = 1000
AS_CULPRIT = ("setpriv", f"--reuid={CULPRIT_UID}", f"--regid={CULPRIT_UID}", "--clear-groups")


def run(stage: Stage) -> None:
    system = stage.mpsd
    system.renew()
    with Mpsd(system.pipe / "mpsd.sock") as mpsd:
        gpus = [device.uuid for device in mpsd.ask(calls.device_list()).items]
    if len(gpus) < 2:
        stage.add("two GPUs in one domain", remark="not run: it needs two GPUs")
        return
    _limits(stage, system, gpus)
    for mode in ("oob_write", "trap"):
        _faults(stage, system, gpus, mode)


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


def _counter(system: System, gpu: str) -> Client:
    client = system.spawn([str(system.programs / "counter"), "--json", "--seconds", "600"], _visible(system, gpu))
    if not client.wait_for("ready", READY_SECONDS):
        raise SystemFailed(f"a counter on GPU {gpu} did not start: {client.fate}")
    return client


def _faults(stage: Stage, system: System, gpus: Sequence[str], mode: str) -> None:
    trials = stage.trials(TRIALS)
    one, named, right_gpu, living, raw = 0, 0, 0, 0, []
    innocents = [_counter(system, gpu) for gpu in ("0", "1")]
    for _ in range(trials):
        system.wait_for_spare(SETTLE_SECONDS)
        known = {incident.number for incident in _incidents(system)}
        culprit = system.spawn([*AS_CULPRIT, str(system.programs / "faulter"), mode, "--json"], _visible(system, "1"))
        culprit.wait(READY_SECONDS)
        found = _settled(system, known)
        one += len(found) == 1
        named += len(found) == 1 and found[0].culprit is not None and found[0].culprit.pid == culprit.pid
        right_gpu += [incident.gpu for incident in found] == [gpus[1]]
        living += sum(client.is_running for client in innocents)
        raw.append({"pid": culprit.pid, "fate": culprit.fate, "incidents": [str(incident) for incident in found]})
        system.clients.remove(culprit)
    stage.keep(mode, raw)
    for line in raw:
        stage.say(json.dumps(line)[:1500])
    of = [figures.of(count, trials) for count in (one, named, right_gpu)]
    stage.add(
        f"{mode} of user {CULPRIT_UID} on GPU 1, beside a client of root on each GPU: one incident, its culprit, its GPU",
        mpsd=", ".join(of), goal="all", met=one == named == right_gpu == trials and living == 2 * trials,
        remark=f"innocents that go on: {figures.of(living, 2 * trials)}",
    )  # fmt: skip
    end_all(innocents)
    system.clients.clear()


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
