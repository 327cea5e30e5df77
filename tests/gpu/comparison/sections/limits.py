"""Individual limits of clients: three that start together, many that come at once, the price, and the ways to refuse.

For comparison the vendor's daemon, as an operator would use it by hand: set the server's limits, start the client, set the
next.
"""

import itertools
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mpsd_client import Client as Mpsd
from mpsd_client import Selector, calls

from tests.gpu.comparison import figures
from tests.gpu.comparison.clients import Client, end_all
from tests.gpu.comparison.stage import Stage
from tests.gpu.comparison.system import System, SystemFailed

WATCHER = Path(__file__).resolve().parents[2] / "watch_processes.py"
MIB = 1 << 20
ROUNDS = 20
ARRIVALS = 40
PRICE_PAIRS = 12
LATE_SECONDS, LATE_START_SECONDS = 9, 2.0
CLIENT_SECONDS = 20.0
REFUSAL_SECONDS = 2.0
GROUP_OF_SMS = 4  # no share is further from its number of SMs than this (measured: 25 % of 132 are 32)


class Quota(NamedTuple):
    """What one client found that it has."""

    sms: int
    seen: int
    mib: int


@dataclass(frozen=True, slots=True)
class Share:
    """What one client is to get."""

    percent: float
    mib: int

    def is_kept(self, got: Quota, all_sms: int) -> bool:
        """No more than it may, and not much less: its context counts against the memory.  Its kernel runs on no more either."""
        most = all_sms * self.percent / 100
        return most - GROUP_OF_SMS <= got.sms <= most and got.seen <= most and self.mib - 1024 <= got.mib <= self.mib


TOGETHER = (Share(10, 2048), Share(30, 4096), Share(60, 6144))
LATE_SHARES = (Share(10, 2048), Share(60, 6144))
OF_MANY = (Share(10, 1536), Share(25, 2048), Share(50, 3072), Share(8, 1792))


ROOMY = "[admission]\nsm_oversubscription = 100.0\nmemory_oversubscription = 100.0\n"


def run(stage: Stage) -> None:
    stage.mpsd.quit()
    mpsd = stage.another("limits", stage.mpsd.control, stage.mpsd, config=ROOMY)
    for part in (_together, _many, _price):
        for system in (stage.vendor, mpsd):
            system.renew()
            system.warm(CLIENT_SECONDS)
        part(stage, mpsd)
    mpsd.quit()
    for way in ("wait", "error", "end"):
        _refusal(stage, way)


# -- limits --------------------------------------------------------------------------------------------------------------


def _together(stage: Stage, mpsd: System) -> None:
    rounds = stage.trials(ROUNDS)
    all_sms = _all_sms(mpsd)
    kept = {"vendor": 0, "mpsd": 0}
    raw: dict[str, list[object]] = {"vendor": [], "mpsd": []}
    for name, system, start in (("vendor", stage.vendor, start_by_hand), ("mpsd", mpsd, start_leased)):
        for _ in range(rounds):
            found = [_quota(client) for client in start(system, TOGETHER)]
            raw[name].append(found)
            kept[name] += all(
                got is not None and share.is_kept(got, all_sms) for share, got in zip(TOGETHER, found, strict=True)
            )
            system.clients.clear()
    stage.keep("together", raw)
    what = "3 clients at the same moment, 10, 30, 60 % and 2, 4, 6 GiB: rounds in which each has its own"
    cells = {name: figures.of(count, rounds) for name, count in kept.items()}
    remark = f"last: {raw['mpsd'][-1]}, by hand {raw['vendor'][-1]}"
    stage.add(what, **cells, goal="all", met=kept["mpsd"] == rounds, remark=remark)


def start_by_hand(system: System, shares: Sequence[Share]) -> list[Client]:
    """The limits of the server are set, a client is started, and so on: what a script can do."""
    server = _server(system)
    clients = []
    for share in shares:
        system.ask(f"set_active_thread_percentage {server} {share.percent:g}")
        system.ask(f"set_device_pinned_mem_limit {server} 0 {share.mib}M")
        clients.append(system.client("quota"))
    return clients


def start_leased(system: System, shares: Sequence[Share], before: Sequence[str] = ()) -> list[Client]:
    """Start clients, each with a separate lease, which its environment names."""
    tokens = [secrets.token_hex(16) for _ in shares]
    with _mpsd(system) as mpsd:
        for token, share in zip(tokens, shares, strict=True):
            mpsd.ask(
                calls.lease_create(
                    "compare", Selector.of_token(token), sm_percent=share.percent,
                    memory_bytes={"0": share.mib * MIB}, ttl_seconds=60.0,
                )
            )  # fmt: skip
    return [_with_token(system, token, before) for token in tokens]


def _with_token(system: System, token: str, before: Sequence[str]) -> Client:
    argv = [*before, str(system.programs / "quota"), "--json", "--start-ns", "{start_ns}"]
    return system.spawn(argv, system.environment() | {"MPSD_LEASE": token})


def _quota(client: Client, late_seconds: float = 0.0) -> Quota | None:
    client.wait(CLIENT_SECONDS + late_seconds)
    said = client.events("quota")
    return Quota(said[0]["sms"], said[0]["seen"], said[0]["mib"]) if said else None


def _many(stage: Stage, mpsd: System) -> None:
    all_sms = _all_sms(mpsd)
    shares = list(itertools.islice(itertools.cycle(OF_MANY), ARRIVALS))
    took, right = {}, {}
    for name, system in (("vendor", stage.vendor), ("mpsd", mpsd)):
        before = time.monotonic()
        plain = [system.client("quota", "--most", "256") for _ in shares] if system is stage.vendor else []
        clients = plain or start_leased(system, shares)
        found = [_quota(client) for client in clients]
        took[name] = time.monotonic() - before
        right[name] = sum(
            got is not None and (bool(plain) or share.is_kept(got, all_sms)) for share, got in zip(shares, found, strict=True)
        )
        stage.keep(f"many, {name}", [found, [client.fate for client in clients]])
        system.clients.clear()
    stage.add(
        f"{ARRIVALS} clients in a second, 4 kinds of limits (vendor: none): as they should be",
        **{name: figures.of(count, ARRIVALS) for name, count in right.items()},
        goal="all", met=right["mpsd"] == ARRIVALS,
    )  # fmt: skip
    cells = {name: figures.ms(seconds * 1e3) for name, seconds in took.items()}
    stage.add("... until the last has run", **cells, ratio=figures.times(took["mpsd"] / took["vendor"]))


def run_late(stage: Stage) -> None:
    """A client with small limits waits in the middle of its start, longer than its time alone lasts (decision 055), while one
    with large limits starts and ends.

    It waits before one of its calls that connect, send or receive, each in its turn: what a hostile client can do to itself.
    A client that has its channel keeps its window for 30 s from its own user's clients. LATE_SECONDS=40 LATE_FIRST=6 is for a
    longer wait before the last two of the seven calls that a client makes with driver 580.
    """
    seconds = int(os.environ.get("LATE_SECONDS", LATE_SECONDS))
    stage.mpsd.quit()
    mpsd = stage.another("late", stage.mpsd.control, stage.mpsd, config=ROOMY)
    mpsd.start()
    mpsd.warm(CLIENT_SECONDS)
    all_sms = _all_sms(mpsd)
    small, large = LATE_SHARES
    found: list[tuple[str, Quota | None, str, float]] = []
    for number in itertools.count(int(os.environ.get("LATE_FIRST", 1))):
        if stage.left() < 3 * seconds:
            break
        [slow] = start_leased(mpsd, [small], [str(mpsd.programs / "late"), str(number), str(seconds)])
        if not slow.wait_for_line(f"late: call {number} ", LATE_START_SECONDS):
            slow.wait(CLIENT_SECONDS)
            break  # it makes no more calls
        began = time.monotonic()
        [fast] = start_leased(mpsd, [large])
        of_fast, waited = _quota(fast, seconds), time.monotonic() - began
        found.append((slow.other[-1], _quota(slow, seconds), slow.fate, waited))
        stage.say(f"{slow.other[-1]}: {found[-1][1]}, {slow.fate}; the other one: {of_fast}, {fast.fate} after {waited:.1f} s")
        mpsd.clients.clear()
    stage.keep("late", [list(each) for each in found])
    wrong = [each for each in found if each[1] is not None and not small.is_kept(each[1], all_sms)]
    held = sum(waited > 1 for *_, waited in found)
    fates = sorted({fate for _, quota, fate, _ in found if quota is None})
    stage.add(
        f"{seconds} s late before one of its calls: has its own limits, or does not start",
        mpsd=figures.of(len(found) - len(wrong), len(found)), goal="all", met=not wrong and len(found) > 1,
        remark=f"{held} kept the other one waiting; not started: {fates}; wrong: {wrong}"[:400],
    )  # fmt: skip
    mpsd.quit()


# -- its price -----------------------------------------------------------------------------------------------------------


def _price(stage: Stage, mpsd: System) -> None:
    """Measure how much setting and closing the limits adds to a client's start, one client at a time, compared with mpsd
    without limits."""
    count = stage.trials(PRICE_PAIRS)
    plain = [_start_ms(mpsd.client("quota", "--most", "64")) for _ in range(count)]  # first: with a lease come its windows
    limited = [_start_ms(start_leased(mpsd, [Share(50, 2048)])[0]) for _ in range(count)]
    mpsd.clients.clear()
    stage.keep("price", {"plain": plain, "limited": limited})
    difference = (figures.median(limited) or 0) - (figures.median(plain) or 0)
    stage.add(
        f"start to SMs counted, mpsd with a lease beside mpsd without (median of {len(plain)})",
        vendor=f"without: {figures.ms(figures.median(plain))}", mpsd=f"with: {figures.ms(figures.median(limited))}",
        ratio=figures.times(figures.ratio(limited, plain)),
        remark=f"{difference:+.1f} ms; {figures.pair_range(limited, plain)}",
    )  # fmt: skip


def _start_ms(client: Client) -> float:
    client.wait(CLIENT_SECONDS)
    said = client.events("quota")
    if not said:
        raise SystemFailed(f"a client did not run: {client.fate}")
    return float(said[0]["monotonic_ns"] - client.started_ns) / 1e6


# -- refusing ------------------------------------------------------------------------------------------------------------


def _refusal(stage: Stage, way: str) -> None:
    """No client runs without a lease: check what the client sees, and whether it ever was on a GPU without MPS."""
    config = f'[admission]\ndefault = "refuse"\nrefuse_with = "{way}"\n'
    system = stage.another(f"refuse-{way}", stage.mpsd.control, stage.mpsd, config=config)
    system.start()
    running = start_leased(system, [Share(50, 4096)])[0]
    running.wait(CLIENT_SECONDS)
    watcher = system.spawn([str(stage.options.python), str(WATCHER)])
    watcher.wait_for("processes", 5.0)
    clients = [system.client("quota"), system.client("counter", "--seconds", "0.2")]
    for client in clients:
        client.wait(REFUSAL_SECONDS)
    fates = [client.fate for client in clients]
    ran = [client.pid for client in clients if client.events("ready") or client.events("quota")]
    seen = {pid for event in watcher.events("processes") for pid in (*event["plain"], *event["mps"])}
    on_gpu = sorted(seen & {client.pid for client in clients})
    wanted = {"wait": "running", "error": "error 805", "end": "signal 9"}[way]
    stage.keep(f"refusal {way}", {"fates": fates, "watched": watcher.events("processes"), "pids": [c.pid for c in clients]})
    stage.add(
        f"no lease, refused by {way}: client",
        mpsd=f"{', '.join(dict.fromkeys(fates))}; kernels ran in {len(ran)}; seen by NVML: {len(on_gpu)}",
        goal=wanted, met=set(fates) == {wanted} and not ran and not on_gpu and running.fate == "done",
        remark=f"one with a lease: {running.fate}",
    )  # fmt: skip
    end_all(system.clients)
    system.clients.clear()
    system.kill()


# -- what all need -------------------------------------------------------------------------------------------------------


@contextmanager
def _mpsd(system: System) -> Iterator[Mpsd]:
    with Mpsd(system.pipe / "mpsd.sock") as mpsd:
        yield mpsd


def _all_sms(system: System) -> int:
    got = _quota(system.client("quota", "--most", "64"))
    system.clients.clear()
    if got is None:
        raise SystemFailed("a client without limits did not run")
    return got.sms


def _server(system: System) -> int:
    if servers := system.servers():
        return servers[0].pid
    raise SystemFailed(f"{system.name} has no server")
