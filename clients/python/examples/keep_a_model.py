"""PyTorch: a model and its results that outlive the process; only the first start builds the model.

    python keep_a_model.py --arena model --steps 1000

Kill it with -9 at any time, and start it again: it continues from the step that it had reached.
"""

import argparse
import time

import torch
from mpsd_client.torch import keep
from torch import nn

STEPS = 1000


def build() -> dict[str, object]:
    """Make everything that has to outlive the process.  `keep` sets the default device and places allocations in the arena."""
    return {
        "model": nn.Sequential(nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 512)),
        "results": torch.zeros(STEPS),
        "step": torch.zeros(1, dtype=torch.int64),
    }


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--arena", default="model")
    options.add_argument("--steps", type=int, default=STEPS, choices=range(STEPS + 1), metavar=f"0..{STEPS}")
    asked = options.parse_args()
    began = time.perf_counter()
    kept = keep(asked.arena, build, capacity=256 << 20)
    model, results, step = kept.state["model"], kept.state["results"], kept.state["step"]
    how = "adopted" if kept.is_adopted else "built"
    print(f"{how} in {(time.perf_counter() - began) * 1e3:.1f} ms, at step {int(step)}", flush=True)
    with torch.no_grad():
        while int(step) < asked.steps:
            results[step] = model(torch.full((512,), float(step), device="cuda")).sum()  # in place, so it is kept
            step += 1  # last, so that an interrupted step is repeated
    print(f"step {int(step)}: {float(results.sum()):.6f}")


if __name__ == "__main__":
    main()
