"""Compile image_hash.cu to mpsd/images/imager/image_hash.ptx, which the driver compiles for its GPU (`make kernel`).

It needs NVRTC (pip install nvidia-cuda-nvrtc) and cuda-bindings, and no GPU.  The text depends on NVRTC's version, which its
first line names.
"""

import hashlib
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SOURCE, TARGET = ROOT / "native/kernel/image_hash.cu", ROOT / "mpsd/images/imager/image_hash.ptx"
ARCHITECTURE = "compute_80"  # the driver compiles it for any later GPU, too
# NVRTC writes the newest version of PTX, which an older driver refuses.  That of CUDA 11.0 has everything in this text.
PTX_VERSION = "7.0"


def head(version: str) -> str:
    """Return the first line of the text: the version of NVRTC, and of which source it is."""
    return f"// NVRTC {version}, image_hash.cu {hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]}: make kernel\n"


def nvrtc_version() -> str:
    """Raise ImportError or RuntimeError without NVRTC."""
    from cuda.bindings import nvrtc

    return ".".join(map(str, _done(nvrtc.nvrtcVersion())))


def text() -> str:
    from cuda.bindings import nvrtc

    program = _done(nvrtc.nvrtcCreateProgram(SOURCE.read_bytes(), SOURCE.name.encode(), 0, [], []))[0]
    options = [f"--gpu-architecture={ARCHITECTURE}".encode()]
    status, *_ = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if status:
        log = bytearray(_done(nvrtc.nvrtcGetProgramLogSize(program))[0])
        _done(nvrtc.nvrtcGetProgramLog(program, log))
        raise RuntimeError(log.decode())
    found = bytearray(_done(nvrtc.nvrtcGetPTXSize(program))[0])
    _done(nvrtc.nvrtcGetPTX(program, found))
    _done(nvrtc.nvrtcDestroyProgram(program))
    lines = found.rstrip(b"\0").decode().splitlines()
    code = "\n".join(line for line in lines if line and not line.startswith("//"))  # without the build's number
    return head(nvrtc_version()) + re.sub(r"^\.version .*$", f".version {PTX_VERSION}", code, flags=re.MULTILINE) + "\n"


def _done(answer: tuple[Any, ...]) -> tuple[Any, ...]:
    if answer[0]:
        raise RuntimeError(f"NVRTC: {answer[0].name}")
    return answer[1:]


if __name__ == "__main__":
    TARGET.write_text(text())
    print(TARGET, file=sys.stderr)
