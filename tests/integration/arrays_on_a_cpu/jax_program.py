"""Runs an example for JAX on the simulator: JAX itself, on the CPU.

The arena's memory is copied instead of taken by DLPack, which JAX does with a GPU's memory only on a GPU.
"""

import runpy
import sys
from typing import Any

import cupy  # beside this file
import jax

jax.dlpack.from_dlpack = lambda tensor: jax.numpy.asarray(cupy.from_dlpack(tensor))
program: Any = sys.argv[1]
sys.argv = sys.argv[1:]
runpy.run_path(program, run_name="__main__")
