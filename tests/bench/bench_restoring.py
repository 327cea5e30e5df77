"""A service that begins from its image, on the simulator: with an imager that `open` starts, and with one of `Service(...)`.

    .venv/bin/python tests/bench/bench_restoring.py [--trials 20] [--json FILE]

The member makes its context after `Service(...)`, loads for a while (it sleeps), and opens.  The image has 6 MiB: what is
measured is the start of an imager.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench import setting
from tests.gpu.comparison import figures
from tests.gpu.comparison.table import Table
from tests.integration.machine import Machine, open_machine

ROOT = Path(__file__).resolve().parents[2]
LOADING = (0.0, 0.2, 0.5)  # seconds
HOW = ("is_cold", "is_early")
MEMBER, IMAGES = Path(__file__).with_name("restoring_member.py"), ROOT / "tests/integration/image_program.py"


def main() -> int:
    asked = setting.parser("restoring", __doc__).parse_args()
    table = Table(facts={"machine": "the simulator: only ratios mean something", "load": f"{os.getloadavg()[0]:.1f}"})
    with tempfile.TemporaryDirectory() as directory, open_machine() as machine:
        machine.start(MPSD_SIM_GPUS="1")
        _run(machine, str(IMAGES), "keep_tensors", directory)
        for seconds in LOADING:
            firsts: dict[str, list[float]] = {how: [] for how in HOW}
            for _ in range(asked.trials):
                for how in HOW:  # in turns: what else runs meanwhile hits both
                    _run(machine, "-m", "mpsctl", "arena", "remove", "tensors")
                    said = json.loads(_run(machine, str(MEMBER), directory, how, str(seconds)))
                    firsts[how].append(said["first"] * 1000)
            table.keep("restoring", f"{seconds:g} s of loading", firsts)
            cold, early = (figures.median(firsts[how]) or 0.0 for how in HOW)
            (fast, slow), (quick, late) = ((min(firsts[how]), max(firsts[how])) for how in HOW)
            remark = f"{quick:.0f} to {late:.0f} ms; cold {cold:.0f} ms, {fast:.0f} to {slow:.0f}"
            what, ratio = f"{seconds:g} s of loading", f"{early / cold:.2f}"
            table.add("restoring", what, mpsd=f"{early:.0f} ms", ratio=ratio, remark=remark)
    return setting.finish(table, asked)


def _run(machine: Machine, *words: str) -> str:
    variables = machine.variables | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, *words], env=variables, capture_output=True, text=True, timeout=100, check=True)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
