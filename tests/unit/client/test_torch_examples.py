"""The examples that use PyTorch, on a CPU and without mpsd: another process repeats an interrupted step, with only the memory
and the published number; the result equals that of an uninterrupted run."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed here")

EXAMPLES = Path(__file__).resolve().parents[3] / "clients/python/examples"
pytestmark = [pytest.mark.slow, pytest.mark.deadline(300)]
DIFFUSION = ["--layers", "2", "--width", "128", "--size", "8", "--steps", "6", "--seed", "3", "--report-every", "1"]
RESNET = ["--steps", "4", "--batch", "2", "--size", "32", "--seed", "3"]
CUT_AT = 3  # the step that does not finish

GO_ON = """
import sys, torch, {name} as example
asked = example.options()
memory = torch.load({memory!r})
torch.use_deterministic_algorithms(True)
{go_on}
"""
GO_ON_WITH_THE_IMAGE = """
model, _ = example.skeleton(asked)
model.fill(asked.seed)
example.sample(example.Sampler(asked, model, memory), {done}, example.Report("-"), lambda step: None, lambda: False)
"""
GO_ON_TRAINING = """
training = example.Training(asked, *memory)
example.train(training, {done}, example.Report("-"), lambda step: None, lambda: False)
"""


def told(command: list[str]) -> list[dict[str, Any]]:
    """Return the program's report."""
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=EXAMPLES, timeout=200)
    return [json.loads(line) for line in done.stdout.splitlines()]


def run(name: str, arguments: list[str]) -> list[dict[str, Any]]:
    return told([sys.executable, f"{name}.py", "--memory", "plain", "--device", "cpu", *arguments])


def go_on(name: str, how: str, memory: object, arguments: list[str], path: Path) -> list[dict[str, Any]]:
    torch.save(memory, path)
    text = GO_ON.format(name=name, memory=str(path), go_on=how.format(done=CUT_AT))
    return told([sys.executable, "-c", text, *arguments])


def example(name: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, Any]:
    monkeypatch.setattr(sys, "argv", [name, "--memory", "plain", "--device", "cpu", *arguments])
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, module.options()


def test_an_image_is_the_same_when_another_process_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run("diffusion", [*DIFFUSION, "--out", str(tmp_path / "whole.png")])
    assert [each["event"] for each in whole] == ["begin", "context", "warm", "first_step", *6 * ["step"], "end"]
    module, asked = example("diffusion", DIFFUSION, monkeypatch)
    model, latents = module.skeleton(asked)
    model.fill(asked.seed)
    sampler = module.Sampler(asked, model, latents)
    sampler.begin()
    for step in range(CUT_AT):
        sampler.step(step)
    latents[(CUT_AT + 1) % 2].view(-1)[:10] = float("nan")  # half of the next one is written
    arguments = [*DIFFUSION, "--memory", "plain", "--device", "cpu", "--out", str(tmp_path / "again.png")]
    again = go_on("diffusion", GO_ON_WITH_THE_IMAGE, latents, arguments, tmp_path / "latents")
    assert [each["n"] for each in again if each["event"] == "step"] == [4, 5, 6]
    assert (again[-1]["digest"], again[-1]["latents"]) == (whole[-1]["digest"], whole[-1]["latents"])
    assert (tmp_path / "again.png").read_bytes() == (tmp_path / "whole.png").read_bytes()


def test_training_ends_the_same_when_another_process_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run("train_resnet", RESNET)
    losses = [each["loss"] for each in whole if each["event"] == "step"]
    assert len(losses) == 4
    module, asked = example("train_resnet", RESNET, monkeypatch)
    sets, seen = module.allocate(asked.steps)
    assert sum(each.numel() for each in module.part(sets[0], "weights.").values()) == 25_557_032  # as ResNet-50 has
    training = module.Training(asked, sets, seen)
    training.begin()
    for step in range(CUT_AT):
        training.step(step)
    for each in sets[(CUT_AT + 1) % 2].values():
        each.fill_(7)  # any value that an interrupted step leaves behind
    arguments = [*RESNET, "--memory", "plain", "--device", "cpu"]
    again = go_on("train_resnet", GO_ON_TRAINING, (sets, seen), arguments, tmp_path / "sets")
    assert [each["loss"] for each in again if each["event"] == "step"] == losses[CUT_AT:]
    assert (again[-1]["digest"], again[-1]["losses"]) == (whole[-1]["digest"], whole[-1]["losses"])


@pytest.mark.parametrize("name", ["diffusion", "train_resnet"])
def test_an_arena_on_a_cpu_is_refused(name: str) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", "--device", "cpu"], capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 2
    assert "an arena is memory of a GPU" in done.stderr


class Term:
    """Is asked to yield before its second step."""

    def __init__(self, done: int | None, steps: int) -> None:
        self.generation, self.promoted_ns, self.arena, self.is_over = 1, 1, None, False
        self.record = None if done is None else {"step": done}
        self._left = steps
        self.published: list[int] = []

    def publish(self, step: int) -> None:
        self.published.append(step)
        self._left -= 1
        self.is_over = not self._left

    def __enter__(self) -> "Term":
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(("name", "arguments"), [("diffusion", DIFFUSION), ("train_resnet", RESNET)])
def test_a_member_yields_between_steps_and_goes_on_when_it_serves_again(
    name: str, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, asked = example(name, arguments, monkeypatch)
    asked.out = tmp_path / "image.png"
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    if name == "diffusion":
        model, latents = module.skeleton(asked)
        model.fill(asked.seed)
        monkeypatch.setattr(module.Member, "build", lambda self, arena: module.Sampler(asked, model, latents))
    else:
        made = module.Training(asked, *module.allocate(asked.steps))
        monkeypatch.setattr(module.Member, "build", lambda self, arena: made)
    terms = [Term(None, 2), Term(2, asked.steps)]
    service = SimpleNamespace(
        open=lambda: SimpleNamespace(layout=None), on_commit=lambda call: call, active=iter(terms).__next__, name=name
    )
    events: list[str] = []
    module.Member(asked, lambda event, **facts: events.append(event), service).run()
    assert [each for term in terms for each in term.published] == list(range(1, asked.steps + 1))
    told = [each for each in events if each != "step"]
    assert told[:5] == ["context", "opened", "standby", "promoted", "first_step"]
    assert told[5:] == ["yielded", "standby", "promoted", "first_step", "end"]
