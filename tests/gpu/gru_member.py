"""A small model as a service, written from docs/python.md alone: a GRU that samples tokens for several streams at once.

    gru_member.py --service gru [--cold]        a member; --cold: warm up with the model alone, as without `rehearse`
    gru_member.py --plain --steps 5000          the same model without mpsd

It prints JSON lines: "standby"; "rehearsed"; "promoted"; "first": the milliseconds of the first step of a term, until the GPU
has finished it, and of its publish; "steady": the median of the later steps; "split": of the first step, the time until its
record was read, and then until its kernels were launched; "step": a number of steps, and the digest of all tokens up to it.
"""

import argparse
import hashlib
import json
import os
import statistics
import time
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from mpsd_client import Arena, Dismissed, Service, Term
from mpsd_client.torch import RNG_BYTES, load, load_into, pool, rng_state, save, set_rng_state
from torch import Tensor, nn

STREAMS, WIDTH, LAYERS, WORDS = 64, 4096, 2, 16384
SEED = 586
SCHEMA = {"step": "uint64", "rng": f"bytes[{RNG_BYTES}]", "digest": "bytes[32]"}
SKIPPED, MEASURED = 10, 50  # steps at the beginning of a term, without a pause
EVERY = 10
PAUSE_SECONDS = 0.02  # between later steps, to limit the number of steps to compare


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.cells = nn.ModuleList(nn.GRUCell(WIDTH, WIDTH) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS)
        self.requires_grad_(False)

    def fill(self) -> None:
        generator = torch.Generator("cuda").manual_seed(SEED)
        for each in self.parameters():
            each.normal_(0.0, WIDTH**-0.5, generator=generator)

    def forward(self, tokens: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        x, states = self.embedding(tokens), []
        for cell, state in zip(self.cells, hidden, strict=True):
            x = cell(x, state)
            states.append(x)
        return self.head(x), torch.stack(states)


class Sampler:
    """The step. It reads one of two halves of its state, and writes the other: so an interrupted step can be repeated."""

    def __init__(self, model: Model, hidden: Tensor, tokens: Tensor) -> None:
        self.model, self.hidden, self.tokens = model, hidden, tokens
        self.launched_ns = 0  # when the last step was, and the wait for the GPU began

    def step(self, number: int) -> list[int]:
        """Draw a token for each stream; the GPU has finished then."""
        source, target = number % 2, (number + 1) % 2
        scores, hidden = self.model(self.tokens[source], self.hidden[source])
        drawn = torch.multinomial(torch.softmax(scores, -1), 1)[:, 0]
        self.hidden[target].copy_(hidden)
        self.tokens[target].copy_(drawn)
        self.launched_ns = time.monotonic_ns()
        return [int(each) for each in drawn.tolist()]

    def warm_up(self) -> None:
        tokens, hidden = self.tokens[0].clone(), self.hidden[0].clone()
        for _ in range(3):
            self.model(tokens, hidden)
        torch.cuda.synchronize()


def say(event: str, **facts: Any) -> None:
    print(json.dumps({"event": event, "pid": os.getpid(), "monotonic_ns": time.monotonic_ns()} | facts), flush=True)


def allocated() -> tuple[Model, Tensor, Tensor]:
    with torch.device("cuda"):
        model, hidden = Model(), torch.zeros(2, LAYERS, STREAMS, WIDTH)
        return model, hidden, torch.zeros(2, STREAMS, dtype=torch.int64)


def chained(digest: bytes, tokens: list[int]) -> bytes:
    return hashlib.sha256(digest + repr(tokens).encode()).digest()


class Member:
    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked = asked
        self.service = Service(asked.service, capacity=4 << 30, schema=SCHEMA)
        self.sampler: Sampler | None = None

    def run(self) -> None:
        torch.cuda.init()
        arena = self.service.open()
        self.service.on_commit(self.adopt)
        if arena.layout is not None:
            self.adopt(arena)
        say("standby")
        with self.service.active() as term:
            self.serve(term, time.monotonic_ns())

    def adopt(self, arena: Arena) -> None:
        with torch.device("meta"):
            model = Model()
        load_into(arena, model)
        found = load(arena)
        sampler = self.sampler = Sampler(model, found["hidden"], found["tokens"])
        began = time.monotonic()
        generator = rng_state()
        if self.asked.cold:
            sampler.warm_up()
            done = False
        else:
            done = self.service.rehearse(lambda: sampler.step(0))
        say(
            "rehearsed",
            done=done,
            seconds=time.monotonic() - began,
            used_bytes=arena.used_bytes,
            is_generator_kept=rng_state() == generator,
        )

    def build(self, arena: Arena) -> Sampler:
        with pool(arena):
            model, hidden, tokens = allocated()
        model.fill()
        save(arena, {"model": model, "hidden": hidden, "tokens": tokens})
        return Sampler(model, hidden, tokens)

    def serve(self, term: Term, began_ns: int) -> None:
        first_ns, step, digest = began_ns, 0, bytes(32)
        sampler = self.sampler or self.build(term.arena)
        if term.record:
            step, digest = int(term.record["step"]), bytes(term.record["digest"])
            set_rng_state(bytes(term.record["rng"]))
        else:
            torch.manual_seed(SEED)
        times: list[tuple[int, int]] = []
        prepared_ns = time.monotonic_ns()
        launched_ns = 0
        told: list[tuple[int, str]] = []
        while not term.is_over:
            digest = chained(digest, sampler.step(step))
            done_ns = time.monotonic_ns()
            launched_ns = launched_ns or sampler.launched_ns
            step += 1
            term.publish(step=step, rng=rng_state(), digest=digest)
            told += [(step, digest.hex())] if step % EVERY == 0 else []
            if len(times) < SKIPPED + MEASURED:
                times.append((done_ns - began_ns, time.monotonic_ns() - done_ns))
                if len(times) == SKIPPED + MEASURED:
                    self.tell(term, step, times)
                    say("split", prepared_ms=(prepared_ns - first_ns) / 1e6, launched_ms=(launched_ns - prepared_ns) / 1e6)
                began_ns = time.monotonic_ns()
                continue
            for number, known in told:
                say("step", n=number, digest=known)
            told = []
            time.sleep(PAUSE_SECONDS)

    def tell(self, term: Term, step: int, times: list[tuple[int, int]]) -> None:
        first, later = times[0], times[SKIPPED:]
        middle = [statistics.median(each[part] for each in later) / 1e6 for part in (0, 1)]
        say("promoted", generation=term.generation, told_ns=term.promoted_ns, step=step - len(times))
        say("first", step_ms=first[0] / 1e6, publish_ms=first[1] / 1e6, second_ms=times[1][0] / 1e6)
        say("steady", step_ms=middle[0], publish_ms=middle[1], worst_ms=max(each[0] for each in later) / 1e6)


def run_plain(steps: int) -> None:
    model, hidden, tokens = allocated()
    model.fill()
    sampler, digest = Sampler(model, hidden, tokens), bytes(32)
    torch.manual_seed(SEED)
    for step in range(steps):
        digest = chained(digest, sampler.step(step))
        if (step + 1) % EVERY == 0:
            say("step", n=step + 1, digest=digest.hex())
    say("end")


def main() -> None:
    known = argparse.ArgumentParser()
    known.add_argument("--service", default="gru")
    known.add_argument("--cold", action="store_true")
    known.add_argument("--plain", action="store_true")
    known.add_argument("--steps", type=int, default=1000)
    asked = known.parse_args()
    torch.use_deterministic_algorithms(True)
    if asked.plain:
        run_plain(asked.steps)
        return
    try:
        Member(asked).run()
    except Dismissed as exc:
        say("dismissed", why=str(exc))
        raise SystemExit(3) from None


if __name__ == "__main__":
    main()
