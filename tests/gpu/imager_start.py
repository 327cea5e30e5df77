"""Start as an imager does that restores, one thing after the other, and print the seconds of each as a line of JSON.

    imager_start.py DIRECTORY IMAGE BYTES BEGAN    BEGAN: time.monotonic() of the caller, before it started this
"""

import json
import sys
import time
from pathlib import Path

ends: dict[str, float] = {}
began = float(sys.argv[4])


def end(what: str) -> None:
    """Note the seconds since the end before."""
    global began
    now = time.monotonic()
    ends[what], began = now - began, now


end("python")
from cuda.bindings import driver  # noqa: E402

end("cuda.bindings")
from mpsd.images.imager import restoring  # noqa: E402
from mpsd.images.imager.device import ExportedMemory, Gpu, call  # noqa: E402
from mpsd.images.imager.kernel import HashKernel  # noqa: E402
from mpsd.images.imager.lanes import Lanes  # noqa: E402
from mpsd.images.store import Images  # noqa: E402

end("mpsd")
images = Images.open_existing(Path(sys.argv[1]))
image = images.reader(sys.argv[2])
end("manifest")
key = images.directory.hash_of.block_key
end("key")
call(driver.cuInit, 0)
end("cuInit")
gpu = Gpu(bytes(call(driver.cuDeviceGetUuid, 0).bytes).hex())
gpu.set_current()
end("context")
HashKernel(gpu.number)
end("kernel")
Lanes(gpu, key, restoring.THREADS).make_buffers()
end("lanes, with a kernel")
ExportedMemory(gpu.number, int(sys.argv[3]))
end("memory")
print(json.dumps({"event": "started", "seconds": ends}))
