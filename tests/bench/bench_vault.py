"""The resources of mpsd and its keepers for a thousand arenas with a hundred thousand allocations; the cost of deaths then.

    .venv/bin/python tests/bench/bench_vault.py [--gpu] [--trials 20] [--json FILE] [--plot FILE]

The same as the section vault_many of tests/gpu/compare, which documents the counts. With fewer trials there are fewer arenas.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench import setting
from tests.gpu.comparison.sections import vault_many
from tests.gpu.comparison.stage import Stage


def measure(stage: Stage, asked: argparse.Namespace) -> None:
    found = vault_many.run(stage)
    lines = {
        "mpsd": [(size.allocations, size.mpsd_mib) for size in found],
        "all keepers": [(size.allocations, size.keeper_mib) for size in found],
    }
    setting.plot(asked.plot, "Resident memory", "allocations", "MiB", lines)


if __name__ == "__main__":
    sys.exit(setting.run("vault", setting.parser("vault", __doc__).parse_args(), measure))
