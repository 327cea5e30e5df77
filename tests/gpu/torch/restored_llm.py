"""The LLM example's model and cache in an arena: take an image, or restore it and compute the first token meanwhile.

    restored_llm.py take SHAPE TOKENS DIRECTORY       the cache has room for so many tokens
    restored_llm.py restore SHAPE TOKENS DIRECTORY
    restored_llm.py restore_warm SHAPE TOKENS DIRECTORY     with an imager that was started before, while the program loads

Both compute the next token of the same prompt; its keys and values are private, since the arena's cache is not there yet.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "clients/python/examples/llm"))

from model import SHAPES, Model, Shape, be_deterministic, cache_of

LENGTH, PROMPT, PAGE = 4096, 128, 16
ARENA, IMAGE = "llm", "llm"
WARM_SECONDS = 1.0  # less than a program takes to load


def say(event: str, **facts: object) -> None:
    print(json.dumps({"event": event, "pid": os.getpid(), "monotonic_ns": time.monotonic_ns(), **facts}), flush=True)


def made(shape: Shape, device: str) -> Model:
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        return Model(shape, LENGTH)


def first_token(model: Model) -> tuple[int, float]:
    """Return the token, and its logit."""
    with torch.device("cuda"):
        kv = cache_of(model.shape, PROMPT // PAGE + 1, PAGE, torch.bfloat16)
        positions = torch.arange(PROMPT)
        pages = torch.arange(1, PROMPT // PAGE + 1)
        tokens = positions * 7919 % model.shape.vocab
    logits = model.head(model(tokens[None], positions[None], kv, positions + PAGE, pages[None])[:, -1])[0]
    best = int(logits.argmax())
    return best, float(logits[best])


def take(shape: Shape, tokens: int, directory: str) -> None:
    from mpsd_client import Arena
    from mpsd_client.torch import pool, save

    per_token = 2 * shape.layers * 2 * shape.kv_heads * shape.head
    arena = Arena.create(ARENA, int(1.05 * (2 * shape.parameters + tokens * per_token)) + (1 << 30))
    with pool(arena):
        model = made(shape, "cuda")
        model.fill(1)
        with torch.device("cuda"):
            kv = cache_of(shape, tokens // PAGE, PAGE, torch.bfloat16)
        for page in kv:
            page.normal_()  # as many different blocks as a cache in use has
    save(arena, {"model": model, "kv": kv})
    token, logit = first_token(model)
    began = time.monotonic()
    taking = arena.image(IMAGE, directory)
    taking.barrier()
    image = taking.wait()
    say("taken", token=token, logit=logit, bytes=image.bytes, kv_bytes=kv.nbytes, seconds=time.monotonic() - began)


def waits(arena: Any, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, which first waits for a part of the model."""

    def wait(*arguments: Any) -> Any:
        arena.ready(f"model.{name}")
        return function(*arguments)

    return wait


def restore(shape: Shape, tokens: int, directory: str, is_warm: bool = False) -> None:
    from mpsd_client import restore_arena, start_imager
    from mpsd_client.torch import load_into

    imager = start_imager() if is_warm else None
    with torch.device("cuda"):
        small = made(replace(shape, layers=1), "cuda")
    first_token(small)  # loads the kernels: a standby has them
    del small
    torch.cuda.empty_cache()
    model = made(shape, "meta")
    if is_warm:
        time.sleep(WARM_SECONDS)
    layers = [f"layers.{number}" for number in range(shape.layers)]
    order = [f"model.{name}" for name in ("cos", "sin", "embedding", *layers, "norm", "head")]
    began = time.monotonic()
    arena = restore_arena(IMAGE, ARENA, order, directory=directory, imager=imager)
    opened = time.monotonic() - began
    load_into(arena, model)
    for layer, name in zip(model.layers, layers, strict=True):
        layer.split = waits(arena, name, layer.split)
    arena.ready("model.cos", "model.sin")
    model.embedding.forward = waits(arena, "embedding", model.embedding.forward)
    model.norm.forward = waits(arena, "norm", model.norm.forward)
    model.head.forward = waits(arena, "head", model.head.forward)
    token, logit = first_token(model)
    first = time.monotonic() - began
    arena.ready()
    say("restored", token=token, logit=logit, opened_s=opened, first_s=first, all_s=time.monotonic() - began)


if __name__ == "__main__":
    be_deterministic()
    with torch.no_grad():
        verbs = {"take": take, "restore": restore, "restore_warm": partial(restore, is_warm=True)}
        verbs[sys.argv[1]](SHAPES[sys.argv[2]], int(sys.argv[3]), sys.argv[4])
