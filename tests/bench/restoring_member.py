"""A member of a service that begins from an image: restoring_member.py DIRECTORY is_early|is_cold SECONDS, of its own loading.

It prints, as a line of JSON, the seconds that `open` took, and those from `open` to a tensor's first bytes in its term.
"""

import ctypes
import json
import sys
import time

from mpsd_client import ImageSchedule, Service, _service_arena

from tests.integration.arena_looks import cuda

directory, how, seconds = sys.argv[1:]
if how == "is_cold":
    _service_arena.early_imager = lambda *_: None
service = Service(
    "tensors", capacity=64 << 20, schema={"step": "uint64", "text": "text[16]"}, images=ImageSchedule(3600.0, directory)
)
context = ctypes.c_void_p()
for status in (cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context)):
    assert status == 0, f"CUDA error {status}"
time.sleep(float(seconds))
begun = time.monotonic()
service.open()
opened = time.monotonic()
with service.active(60.0) as term:
    term.arena.copy_out(term.arena["embed"].address, 4)
    first = time.monotonic()
    print(json.dumps({"open": opened - begun, "first": first - begun}), flush=True)
service.close()
