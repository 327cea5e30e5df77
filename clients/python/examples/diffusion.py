"""A diffusion sampler that survives faults: the image is, byte for byte, that of a run without one.

    mpsctl service run dit --until-done -- python diffusion.py --service dit --out image.png --steps 50 --seed 1

Each process started this way is a member of the service: one makes steps, the others wait with the same memory mapped.  The
model (a DiT, random weights) and two buffers of latents are in the arena.  Step n reads buffer n % 2, writes the other, and is
published when the GPU has finished it: the next active repeats an interrupted step from the unchanged input buffer.  Noise is
drawn from (seed, step) and has no state.  All members need the same share of the GPU, because libraries choose kernels by it.

Needs PyTorch.  --memory plain: without mpsd, in memory that ends with the process; each start begins at step 0.
"""

import argparse
import hashlib
import json
import math
import os
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # makes sums deterministic; cuBLAS reads it when it starts

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from mpsd_client import Arena, Service, Term

CAPACITY_BYTES = 8 << 30  # an upper bound
DISMISSED = 3  # exit status
UNHELD_SECONDS = 3600.0  # how long the arena stays without a member
CHANNELS, PATCH, ZOOM = 4, 2, 8  # of latents; latents of a token; pixels of a latent, each way
FREQUENCIES = 128


class Block(nn.Module):
    """Attention and an MLP; the time shifts, scales and gates each."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.time = nn.Linear(width, 6 * width)

    def forward(self, x: Tensor, when: Tensor) -> Tensor:
        by = self.time(when).chunk(6, dim=-1)
        q, k, v = self.qkv(self.norm(x) * (1 + by[0]) + by[1]).unflatten(-1, (3, -1, 64)).permute(1, 2, 0, 3)
        seen = functional.scaled_dot_product_attention(q[None], k[None], v[None])[0]
        x = x + by[2] * self.out(seen.transpose(0, 1).flatten(1))
        return x + by[5] * self.mlp(self.norm(x) * (1 + by[3]) + by[4])


class DiT(nn.Module):
    """Predicts the noise in latents [CHANNELS, size, size] at a time from 1 to 0, and decodes latents into pixels."""

    def __init__(self, layers: int, width: int, size: int) -> None:
        super().__init__()
        self.grid = size // PATCH
        self.inward = nn.Linear(CHANNELS * PATCH**2, width)
        self.places = nn.Parameter(torch.empty(self.grid**2, width))
        self.time = nn.Sequential(nn.Linear(2 * FREQUENCIES, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.outward = nn.Linear(width, CHANNELS * PATCH**2)
        self.decoder = nn.Linear(CHANNELS, 3 * ZOOM**2)
        self.requires_grad_(False)

    def fill(self, seed: int) -> None:
        generator = torch.Generator(self.places.device).manual_seed(seed)
        for each in self.parameters():
            each.normal_(0.0, each.shape[-1] ** -0.5, generator=generator)

    def forward(self, latents: Tensor, when: float) -> Tensor:
        angles = 1000.0 * when * torch.exp(-math.log(1e4) * torch.arange(FREQUENCIES, device=latents.device) / FREQUENCIES)
        mood = self.time(torch.cat((angles.cos(), angles.sin())))
        patches = latents.unflatten(1, (-1, PATCH)).unflatten(3, (-1, PATCH)).permute(1, 3, 0, 2, 4)
        x = self.inward(patches.reshape(self.grid**2, -1)) + self.places
        for block in self.blocks:
            x = block(x, mood)
        patches = self.outward(x).view(self.grid, self.grid, CHANNELS, PATCH, PATCH)
        return patches.permute(2, 0, 3, 1, 4).reshape(latents.shape)

    def pixels(self, latents: Tensor) -> Tensor:
        """Return the image of the latents as bytes [height, width, 3]."""
        colours = functional.pixel_shuffle(self.decoder(latents.permute(1, 2, 0)).permute(2, 0, 1), ZOOM)
        return (255 * colours.sigmoid()).to(torch.uint8).permute(1, 2, 0).contiguous().cpu()


class Sampler:
    """Makes steps from one of two buffers of latents to the other."""

    def __init__(self, asked: argparse.Namespace, model: DiT, latents: Tensor) -> None:
        self.asked, self.model, self.latents = asked, model, latents

    def begin(self) -> None:
        """Fill buffer 0 with noise."""
        self.latents[0].normal_(generator=self.noise(self.asked.steps))

    def step(self, number: int) -> None:
        """Make a step, and wait until the GPU has finished it."""
        self.advance(number, self.latents[number % 2], self.latents[(number + 1) % 2])
        if self.latents.is_cuda:
            torch.cuda.synchronize()

    def advance(self, number: int, source: Tensor, target: Tensor) -> None:
        """Compute a step: DDIM if eta is 0, DDPM if it is 1.  It reads all of source, then writes all of target."""
        signal, after = self.signal(number), self.signal(number + 1)
        guess = self.model(source, 1 - number / self.asked.steps)
        clean = ((source - math.sqrt(1 - signal) * guess) / math.sqrt(signal)).clamp(-3, 3)
        guess = (source - math.sqrt(signal) * clean) / math.sqrt(1 - signal)
        fresh = torch.empty_like(source).normal_(generator=self.noise(number))
        sigma = self.asked.eta * math.sqrt((1 - after) / (1 - signal) * (1 - signal / after))
        rest = math.sqrt(max(0.0, 1 - after - sigma**2))
        target.copy_(math.sqrt(after) * clean + rest * guess + sigma * fresh)

    def signal(self, number: int) -> float:
        """Return the share of signal in the latents before this step: 0.00025 before the first, 1 after the last."""
        return math.cos(0.495 * math.pi * (1 - number / self.asked.steps)) ** 2

    def noise(self, number: int) -> torch.Generator:
        return torch.Generator(self.latents.device).manual_seed((self.asked.seed << 32) + number)

    def write(self) -> dict[str, str]:
        """Write the image atomically; return digests of the image and of the data that it was made from."""
        latents = self.latents[self.asked.steps % 2]
        image = png(self.model.pixels(latents))
        beside = self.asked.out.with_name(f"{self.asked.out.name}.{os.getpid()}")
        beside.write_bytes(image)
        beside.replace(self.asked.out)
        return {"digest": sha256(image), "latents": sha256(latents.cpu().numpy().tobytes())}


def png(pixels: Tensor) -> bytes:
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels.numpy())
    chunks = {b"IHDR": b"%b%b\x08\x02\0\0\0" % (number(width), number(height)), b"IDAT": zlib.compress(rows), b"IEND": b""}
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        number(len(data)) + kind + data + number(zlib.crc32(kind + data)) for kind, data in chunks.items()
    )


def number(value: int) -> bytes:
    return value.to_bytes(4, "big")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def skeleton(asked: argparse.Namespace) -> tuple[DiT, Tensor]:
    """Allocate the model and the latents without contents, on the default device."""
    return DiT(asked.layers, asked.width, asked.size), torch.empty(2, CHANNELS, asked.size, asked.size)


class Report:
    """Writes events with their times as JSON lines."""

    def __init__(self, path: str) -> None:
        self._file = sys.stdout if path == "-" else open(path, "a")  # noqa: SIM115 - until the process ends

    def __call__(self, event: str, **facts: Any) -> None:
        line = {"event": event, "pid": os.getpid(), "monotonic_ns": time.monotonic_ns(), **facts}
        print(json.dumps(line), file=self._file, flush=True)


def sample(sampler: Sampler, done: int, report: Report, publish: Callable[[int], None], is_over: Callable[[], bool]) -> bool:
    """Make the remaining steps.  Return True when the image is written, False if another member is to continue."""
    asked, first = sampler.asked, done
    for step in range(done, asked.steps):
        if is_over():
            return False
        sampler.step(step)
        if step == first:
            report("first_step", step=step)
        publish(step + 1)
        if (step + 1) % asked.report_every == 0:
            report("step", n=step + 1)
    report("end", **sampler.write())
    return True


def run_plain(asked: argparse.Namespace, report: Report) -> None:
    report("begin")
    with torch.device(asked.device):
        model, latents = skeleton(asked)
    report("context")
    model.fill(asked.seed)
    sampler = Sampler(asked, model, latents)
    sampler.step(0)  # loads kernels
    report("warm")
    sampler.begin()
    sample(sampler, 0, report, lambda step: None, lambda: False)


def run_service(asked: argparse.Namespace, report: Report) -> None:
    from mpsd_client import Dismissed, Service  # --memory plain works without mpsd_client

    report("begin")
    try:  # create the service before CUDA begins: mpsd then places this process apart from the other members
        with Service(asked.service, capacity=CAPACITY_BYTES, schema={"step": "uint64"}, ttl=UNHELD_SECONDS) as service:
            Member(asked, report, service).run()
    except Dismissed as told:  # all its data is in the arena; the starter of this process starts a new one
        print(f"diffusion.py: {told}", file=sys.stderr)
        sys.exit(DISMISSED)


class Member:
    """A member of the service: makes the image, or waits for its promotion."""

    def __init__(self, asked: argparse.Namespace, report: Report, service: "Service") -> None:
        self.asked, self.report, self.service = asked, report, service
        self.about = {name: getattr(asked, name) for name in ("steps", "seed", "eta", "layers", "width", "size")}
        self.sampler: Sampler | None = None

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
        from mpsd_client.torch import load, load_into

        if arena.extra != self.about:
            raise SystemExit(f"arena {arena.name} is of another image: {arena.extra}: remove it, or use another name")
        with torch.device("meta"):
            model, _ = skeleton(self.asked)
        load_into(arena, model)
        sampler = self.sampler = Sampler(self.asked, model, load(arena)["latents"])
        self.service.rehearse(lambda: sampler.step(0), writes=["latents"])
        self.report("warm")

    def build(self, arena: "Arena") -> Sampler:
        from mpsd_client.torch import pool, save

        with pool(arena), torch.device("cuda"):
            model, latents = skeleton(self.asked)
        model.fill(self.asked.seed)
        save(arena, {"model": model, "latents": latents, "extra": self.about})
        return Sampler(self.asked, model, latents)

    def serve(self, term: "Term") -> bool:
        """Serve a term.  Return whether the image is written."""
        if self.sampler is None:
            self.sampler = self.build(term.arena)
        done: Any = term.record["step"] if term.record else 0
        if not done:
            self.sampler.begin()
        return sample(self.sampler, done, self.report, lambda step: term.publish(step=step), lambda: term.is_over)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--service", default=os.environ.get("MPSD_SERVICE", "dit"))
    parser.add_argument("--out", type=Path, default=Path("image.png"))
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--eta", type=float, default=1.0, help="0: no noise is added between steps")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768, help="a multiple of 64")
    parser.add_argument("--size", type=int, default=32, help="of the latents; the image is 8 times that")
    parser.add_argument("--memory", choices=["arena", "plain"], default="arena")
    parser.add_argument("--device", default="cuda", help="cpu: with --memory plain")
    parser.add_argument("--report", default="-", metavar="FILE", help="lines of JSON; -: standard output")
    parser.add_argument("--report-every", type=int, default=10, metavar="N")
    asked = parser.parse_args()
    if asked.memory == "arena" and asked.device != "cuda":
        parser.error("an arena is memory of a GPU: --device cpu goes with --memory plain")
    if asked.width % 64 or asked.size % PATCH or min(asked.steps, asked.width, asked.size, asked.report_every) < 1:
        parser.error("--width goes by 64, --size by 2, and nothing may be below 1")
    if not 0 <= asked.seed < 1 << 31:
        parser.error("--seed: 0 to 2147483647")
    return asked


def main() -> None:
    asked = options()
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # saves a kernel for each tensor
    report = Report(asked.report)
    if asked.memory == "plain":
        run_plain(asked, report)
    else:
        run_service(asked, report)


if __name__ == "__main__":
    main()
