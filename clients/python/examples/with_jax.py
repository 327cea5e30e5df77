"""JAX: weights in an arena, which each start finds without reading or copying them, and a state that it continues.

    python with_jax.py --arena jax --steps 1000

JAX's arrays never change, and JAX decides where its results lie. So the weights are the arena's memory, which no process writes
after the commit, and the state is copied there after each step, through the host.
"""

import argparse
import os
import time

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else JAX takes three quarters of the GPU's memory

import jax
import numpy
from mpsd_client import Arena, ErrorCode, Layout, Refused, adopt

SIZE = 512


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--arena", default="jax")
    options.add_argument("--steps", type=int, default=1000)
    options.add_argument("--pace", type=float, default=0.0, help="seconds between two steps")
    asked = options.parse_args()
    with adopt_or_create(asked.arena) as arena:
        run(arena, asked.steps, asked.pace)  # whose arrays are gone when the arena closes


def adopt_or_create(name: str) -> Arena:
    try:
        return adopt(name, wait=10)
    except Refused as refused:
        if refused.code != ErrorCode.NO_SUCH_ARENA:
            raise
    arena = Arena.create(name, capacity=8 << 20)
    weights = arena.view(arena.allocate(4 * SIZE * SIZE).address, "float32", (SIZE, SIZE))
    states = arena.allocate(8 * SIZE).address
    state = [arena.view(states, "float32", (SIZE,)), arena.view(states + 4 * SIZE, "float32", (SIZE,))]
    step = arena.view(arena.allocate(8).address, "int64", ())
    generator = numpy.random.default_rng(1)
    weights.frombytes((generator.standard_normal((SIZE, SIZE)) / SIZE**0.5).astype(numpy.float32).tobytes())
    state[0].frombytes(numpy.ones(SIZE, numpy.float32).tobytes())
    step.frombytes(bytes(8))
    named = {"weights": weights, "state.0": state[0], "state.1": state[1], "step": step}
    arena.commit(Layout({name: each.spec for name, each in named.items()}))  # last: adopted complete, or made anew
    return arena


def next_state(weights: jax.Array, state: jax.Array) -> jax.Array:
    return jax.numpy.tanh(weights @ state)


def run(arena: Arena, steps: int, pace: float) -> None:
    compiled = jax.jit(next_state)
    weights = jax.dlpack.from_dlpack(arena["weights"])  # no copy: the arena's memory
    step = int.from_bytes(arena["step"].tobytes(), "little")
    state = jax.numpy.asarray(numpy.frombuffer(arena[f"state.{step % 2}"].tobytes(), numpy.float32))
    print(f"generation {arena.generation} begins after step {step}", flush=True)
    while step < steps:
        state, step = compiled(weights, state), step + 1
        arena[f"state.{step % 2}"].frombytes(numpy.asarray(state).tobytes())  # in turns: a step that was cut off is repeated
        arena["step"].frombytes(step.to_bytes(8, "little"))  # last
        time.sleep(pace)
    print(f"step {step}: {float(abs(state).sum()):.4f}")


if __name__ == "__main__":
    main()
