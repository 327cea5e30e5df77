"""An unmodified PyTorch program: its start, and how many matrices it multiplies."""

from pathlib import Path

from tests.gpu.comparison import figures
from tests.gpu.comparison.stage import Stage
from tests.gpu.comparison.system import System, SystemFailed

PROGRAM = Path(__file__).resolve().parents[2] / "torch_client.py"
PAIRS = 3
SECONDS = "1.5"
RUN_SECONDS = 60.0
START_GOAL = 1.05
RATE_GOAL = 0.95

Run = dict[str, float]


def run(stage: Stage) -> None:
    if stage.options.torch_python is None:
        stage.add("skipped", remark="no Python with PyTorch here (--torch-python names one)")
        return
    for system in stage.both:
        system.ready()
    _one(stage, stage.vendor, "0")  # reads PyTorch from the disk
    stage.mpsd.warm(RUN_SECONDS)
    found: dict[str, list[Run]] = {"vendor": [], "mpsd": []}
    for _ in range(stage.trials(PAIRS)):
        for system in stage.both:
            found[system.name].append(_one(stage, system, SECONDS))
    stage.keep("runs", found)
    for key, what, least, most in (
        ("all_ms", "start to first matmul", None, START_GOAL),
        ("import_ms", "of that, import torch", None, None),
        ("cuda_ms", "of that, CUDA until the first matmul", None, START_GOAL),
        ("per_second", "matmuls per second", RATE_GOAL, None),
    ):
        _row(stage, what, [[each[key] for each in found[name]] for name in ("vendor", "mpsd")], least, most)


def _one(stage: Stage, system: System, seconds: str) -> Run:
    client = system.spawn([str(stage.options.torch_python), str(PROGRAM), seconds, "{start_ns}"])
    client.wait(RUN_SECONDS)
    ready, end = client.events("ready"), client.events("end")
    if not (ready and end and ready[0]["is_right"]):
        raise SystemFailed(f"{system.name}: PyTorch: {client.trouble}")
    system.clients.remove(client)
    return {
        "all_ms": ready[0]["first_kernel_ms"],
        "import_ms": client.events("import")[0]["ms"],
        "cuda_ms": ready[0]["cuda_ms"],
        "per_second": end[0]["per_second"],
    }


def _row(stage: Stage, what: str, found: list[list[float]], least: float | None, most: float | None) -> None:
    theirs, ours = found
    ratio = figures.ratio(ours, theirs)
    shown = figures.number if least else figures.ms
    met = None if ratio is None or not (least or most) else ratio >= least if least else most is None or ratio <= most
    stage.add(
        f"PyTorch: {what} (median of {len(ours)})",
        vendor=shown(figures.median(theirs)),
        mpsd=shown(figures.median(ours)),
        ratio=figures.times(ratio),
        goal=f">= {least}" if least else f"<= {most}" if most else "",
        met=met,
        remark=figures.pair_range(ours, theirs),
    )
