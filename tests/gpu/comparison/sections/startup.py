"""Client start to first kernel finished: an unmodified CUDA C program, and a PyTorch program."""

from tests.gpu.comparison import figures
from tests.gpu.comparison.stage import Stage
from tests.gpu.comparison.system import System, SystemFailed

PAIRS = 15
COLD_PAIRS = 3
GOAL = 1.05
CLIENT_SECONDS = 20.0
PARTS = {"first_kernel_ms": "all", "init_ms": "cuInit", "context_ms": "context"}

Times = dict[str, list[float]]


def run(stage: Stage) -> None:
    for system in stage.both:
        system.warm(CLIENT_SECONDS)
    warm = _interleaved(stage, stage.trials(PAIRS))
    for part, called in PARTS.items():
        _row(stage, f"C client, warm: {called}", [each[part] for each in warm], part == "first_kernel_ms")
    _spread(stage, warm)
    cold: tuple[Times, Times] = ({}, {})
    for _ in range(stage.trials(COLD_PAIRS)):
        for times, system in zip(cold, stage.both, strict=True):
            times.setdefault("daemon_ms", []).append(system.renew())
            _note(times, _first_kernel(system))
    _row(stage, "C client, its server not started yet", [each["first_kernel_ms"] for each in cold])
    _row(stage, "-d, until it takes clients", [each["daemon_ms"] for each in cold])
    stage.keep("warm", dict(zip(("vendor", "mpsd"), warm, strict=True)))
    stage.keep("cold", dict(zip(("vendor", "mpsd"), cold, strict=True)))


def _interleaved(stage: Stage, pairs: int) -> tuple[Times, Times]:
    found: tuple[Times, Times] = ({}, {})
    for _ in range(pairs):
        for times, system in zip(found, stage.both, strict=True):
            _note(times, _first_kernel(system))
    return found


def _first_kernel(system: System) -> dict[str, float]:
    client = system.client("counter", "--seconds", "0")
    client.wait(CLIENT_SECONDS)
    ready = client.events("ready")
    if not ready:
        raise SystemFailed(f"a client of {system.name} did not get to its first kernel: {client.fate}")
    system.clients.remove(client)
    return {part: ready[0][part] for part in PARTS}


def _note(times: Times, one: dict[str, float]) -> None:
    for part, value in one.items():
        times.setdefault(part, []).append(value)


def _row(stage: Stage, what: str, found: list[list[float]], has_goal: bool = False) -> None:
    theirs, ours = found
    ratio = figures.ratio(ours, theirs)
    stage.add(
        f"{what} (median of {len(ours)})",
        vendor=figures.ms(figures.median(theirs)),
        mpsd=figures.ms(figures.median(ours)),
        ratio=figures.times(ratio),
        goal=f"<= {GOAL}" if has_goal else "",
        met=ratio is not None and ratio <= GOAL if has_goal else None,
        remark=figures.pair_range(ours, theirs),
    )


def _spread(stage: Stage, warm: tuple[Times, Times]) -> None:
    theirs, ours = ([figures.ms(figures.quantile(each["first_kernel_ms"], share)) for share in (0, 0.9, 1)] for each in warm)
    stage.add("C client, warm: fastest, 90 %, slowest", vendor=", ".join(theirs), mpsd=", ".join(ours))
