"""ResNet-50, trained so that a fault costs the step that it hits and no more: losses and weights are those of a run without it.

    mpsctl service run resnet --until-done -- python train_resnet.py --service resnet --steps 200 --seed 1

Each process started this way is a member of the service: one trains, the others wait with the same memory mapped.  All that
training needs (weights, momentum, statistics of the norms) is in the arena twice.  Step n reads set n % 2, writes all of the
other, and is published when the GPU has finished it: the next active repeats an interrupted step from the unchanged set.
Images and labels are drawn from (seed, step) and have no state.  All members need the same share of the GPU, because libraries
choose kernels by it.

The cost: the second set, 205 MB in addition to several GB of activations (batch 64); and almost no time, since a step has to
write its results anyway.  Adam would need half as much again.  If memory is short, train one set in place, and copy it to host
memory every k steps; a fault then costs up to k steps.

Needs PyTorch.  --memory plain: without mpsd, in memory that ends with the process; each start begins at step 0.
"""

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # makes sums deterministic; cuBLAS reads it when it starts

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from mpsd_client import Arena, Service, Term

CAPACITY_BYTES = 2 << 30  # an upper bound
DISMISSED = 3  # exit status
UNHELD_SECONDS = 3600.0  # how long the arena stays without a member
DEPTHS = (3, 4, 6, 3)  # bottlenecks of each width
CLASSES = 1000
RATE, MOMENTUM = 0.01, 0.9
ONES = ("running_var", "begin.1.weight", "steps.1.weight", "steps.4.weight", "aside.1.weight")  # not the last norm of a block
Tensors = dict[str, Tensor]


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.steps = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 4 * width, 1, bias=False),
            nn.BatchNorm2d(4 * width),
        )
        self.aside = nn.Sequential()
        if inputs != 4 * width:
            self.aside = nn.Sequential(nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.steps(x) + self.aside(x))


class ResNet50(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.begin = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        blocks, inputs = [], 64
        for number, depth in enumerate(DEPTHS):
            for each in range(depth):
                blocks.append(Bottleneck(inputs, 64 << number, 2 if number and not each else 1))
                inputs = 256 << number
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.blocks(self.begin(images)).mean((2, 3)))  # adaptive pooling adds in no fixed order


class Training:
    """Two sets of the tensors that a step reads and writes, and the losses.

    weights.*: the model's; momentum.*: one for each weight; norms.*: the buffers of the model.
    """

    def __init__(self, asked: argparse.Namespace, sets: list[Tensors], losses: Tensor) -> None:
        self.asked, self.sets, self.losses = asked, sets, losses
        with torch.device("meta"):  # functional_call gives it the tensors of a set
            self.model = ResNet50()

    def begin(self) -> None:
        """Initialize set 0 for the first step."""
        generator = torch.Generator(self.losses.device).manual_seed(self.asked.seed)
        for name, each in self.sets[0].items():
            if name.startswith("weights.") and each.dim() > 1:
                each.normal_(0.0, (2.0 / each[0].numel()) ** 0.5, generator=generator)
            else:
                each.fill_(1 if name.endswith(ONES) and not name.startswith("momentum.") else 0)

    def step(self, number: int) -> None:
        """Make a step, and wait until the GPU has finished it."""
        self.advance(number, self.sets[number % 2], self.sets[(number + 1) % 2], self.losses[number])
        self.finish()

    def advance(self, number: int, source: Tensors, target: Tensors, loss: Tensor) -> None:
        """Compute a step of SGD with momentum.  It writes all of target and nothing of source."""
        images, labels = self.batch(number)
        weights = {name: each.detach().requires_grad_() for name, each in part(source, "weights.").items()}
        norms = part(target, "norms.")  # training changes the model's buffers, so use those of the target
        for name, each in part(source, "norms.").items():
            norms[name].copy_(each)
        found = functional.cross_entropy(torch.func.functional_call(self.model, {**weights, **norms}, (images,)), labels)
        slopes = torch.autograd.grad(found, list(weights.values()))
        with torch.no_grad():
            for (name, weight), slope in zip(weights.items(), slopes, strict=True):
                momentum = target[f"momentum.{name}"]
                torch.add(slope, source[f"momentum.{name}"], alpha=MOMENTUM, out=momentum)
                torch.add(weight, momentum, alpha=-RATE, out=target[f"weights.{name}"])
            loss.copy_(found)

    def batch(self, number: int) -> tuple[Tensor, Tensor]:
        """Return noise images, brighter for higher labels, and the labels."""
        device, count = self.losses.device, self.asked.batch
        generator = torch.Generator(device).manual_seed((self.asked.seed << 32) + number)
        labels = torch.randint(0, 10, (count,), generator=generator, device=device)
        images = torch.randn(count, 3, self.asked.size, self.asked.size, generator=generator, device=device)
        return images + labels.view(-1, 1, 1, 1) / 5, labels

    def finish(self) -> None:
        if self.losses.is_cuda:
            torch.cuda.synchronize()

    def digests(self) -> dict[str, str]:
        weights = part(self.sets[self.asked.steps % 2], "weights.")
        return {"digest": digest(weights), "losses": digest({"": self.losses})}


def part(tensors: Mapping[str, Tensor], begin: str) -> Tensors:
    """Return the tensors whose names have this prefix, by the rest of their names."""
    return {name.removeprefix(begin): each for name, each in tensors.items() if name.startswith(begin)}


def digest(tensors: Tensors) -> str:
    found = hashlib.sha256()
    for name in sorted(tensors):
        found.update(name.encode() + tensors[name].detach().cpu().numpy().tobytes())
    return found.hexdigest()


def allocate(steps: int) -> tuple[list[Tensors], Tensor]:
    """Allocate two sets and the losses without contents, on the default device."""
    sets = []
    for _ in range(2):
        model = ResNet50()
        tensors = {f"weights.{name}": each.detach() for name, each in model.named_parameters()}
        tensors |= {f"momentum.{name}": torch.empty_like(each.detach()) for name, each in model.named_parameters()}
        sets.append(tensors | {f"norms.{name}": each for name, each in model.named_buffers()})
    return sets, torch.empty(steps)


class Report:
    """Writes events with their times as JSON lines."""

    def __init__(self, path: str) -> None:
        self._file = sys.stdout if path == "-" else open(path, "a")  # noqa: SIM115 - until the process ends

    def __call__(self, event: str, **facts: Any) -> None:
        line = {"event": event, "pid": os.getpid(), "monotonic_ns": time.monotonic_ns(), **facts}
        print(json.dumps(line), file=self._file, flush=True)


def train(training: Training, done: int, report: Report, publish: Callable[[int], None], is_over: Callable[[], bool]) -> bool:
    """Make the remaining steps.  Return True when the training is done, False if another member is to continue."""
    asked = training.asked
    for step in range(done, asked.steps):
        if is_over():
            return False
        training.step(step)
        if step == done:
            report("first_step", step=step)
        if step % asked.report_every == 0 or step + 1 == asked.steps:  # before publishing: a line may repeat, none is lost
            report("step", n=step, loss=training.losses[step].item())
        publish(step + 1)
    report("end", **training.digests())
    return True


def run_plain(asked: argparse.Namespace, report: Report) -> None:
    report("begin")
    with torch.device(asked.device):
        training = Training(asked, *allocate(asked.steps))
    report("context")
    training.begin()
    training.step(0)  # loads kernels, and changes nothing that step 0 reads
    report("warm")
    train(training, 0, report, lambda step: None, lambda: False)


def run_service(asked: argparse.Namespace, report: Report) -> None:
    from mpsd_client import Dismissed, Service  # --memory plain works without mpsd_client

    report("begin")
    try:  # create the service before CUDA begins: mpsd then places this process apart from the other members
        with Service(asked.service, capacity=CAPACITY_BYTES, schema={"step": "uint64"}, ttl=UNHELD_SECONDS) as service:
            Member(asked, report, service).run()
    except Dismissed as told:  # all its data is in the arena; the starter of this process starts a new one
        print(f"train_resnet.py: {told}", file=sys.stderr)
        sys.exit(DISMISSED)


class Member:
    """A member of the service: trains, or waits for its promotion."""

    def __init__(self, asked: argparse.Namespace, report: Report, service: "Service") -> None:
        self.asked, self.report, self.service = asked, report, service
        self.about = {name: getattr(asked, name) for name in ("steps", "seed", "batch", "size")}
        self.training: Training | None = None

    def run(self) -> None:
        service = self.service
        torch.cuda.init()
        torch.cuda.synchronize()
        self.report("context")
        arena = service.open()
        self.report("opened")
        service.on_commit(self.adopt)
        if arena.layout is not None:
            self.adopt(arena)
        while True:
            self.report("standby")
            with service.active() as term:
                self.report("promoted", generation=term.generation, told_ns=term.promoted_ns, record=term.record is not None)
                if self.serve(term):
                    return
            self.report("yielded")

    def adopt(self, arena: "Arena") -> None:
        """Map the memory that another member has built, which is read-only until this member is promoted; rehearse a step."""
        from mpsd_client.torch import load

        if arena.extra != self.about:
            raise SystemExit(f"arena {arena.name} is of another training: {arena.extra}: remove it, or use another name")
        found = load(arena)
        training = self.training = Training(self.asked, [part(found, "sets.0."), part(found, "sets.1.")], found["losses"])
        self.service.rehearse(lambda: training.step(0), writes=["sets.1", "losses"], times=1)
        if training.losses.is_cuda:
            torch.cuda.empty_cache()  # several GB of activations
        self.report("warm")

    def build(self, arena: "Arena") -> Training:
        from mpsd_client.torch import pool, save

        with pool(arena), torch.device("cuda"):
            sets, losses = allocate(self.asked.steps)
        save(arena, {"sets": sets, "losses": losses, "extra": self.about})
        return Training(self.asked, sets, losses)

    def serve(self, term: "Term") -> bool:
        """Serve a term.  Return whether the training is done."""
        if self.training is None:
            self.training = self.build(term.arena)
        done: Any = term.record["step"] if term.record else 0
        if not done:
            self.training.begin()
        return train(self.training, done, self.report, lambda step: term.publish(step=step), lambda: term.is_over)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--service", default=os.environ.get("MPSD_SERVICE", "resnet"))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--size", type=int, default=224, help="of the images")
    parser.add_argument("--memory", choices=["arena", "plain"], default="arena")
    parser.add_argument("--device", default="cuda", help="cpu: with --memory plain")
    parser.add_argument("--report", default="-", metavar="FILE", help="lines of JSON; -: standard output")
    parser.add_argument("--report-every", type=int, default=1, metavar="N")
    asked = parser.parse_args()
    if asked.memory == "arena" and asked.device != "cuda":
        parser.error("an arena is memory of a GPU: --device cpu goes with --memory plain")
    if min(asked.steps, asked.batch, asked.report_every) < 1 or asked.size < 32 or asked.size % 32:
        parser.error("--size goes by 32, and nothing may be below 1")
    if not 0 <= asked.seed < 1 << 31:
        parser.error("--seed: 0 to 2147483647")
    return asked


def main() -> None:
    asked = options()
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # saves a kernel for each tensor
    torch.backends.cudnn.benchmark = False  # it would choose kernels by timing them
    report = Report(asked.report)
    if asked.memory == "plain":
        run_plain(asked, report)
    else:
        run_service(asked, report)


if __name__ == "__main__":
    main()
