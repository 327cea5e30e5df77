"""carry_python.py ROOT PREFIX: give the installation in PREFIX, below ROOT, its own Python and C library.

It then runs in containers and on hosts that have neither, at the same PREFIX.  Run it with the Python of that installation.
Needs ldd, and patchelf on PATH.
"""

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

LEFT_OUT = shutil.ignore_patterns(
    "__pycache__", "config-*", "dist-packages", "ensurepip", "idlelib", "lib2to3", "site-packages", "test", "tests", "tkinter",
    "turtledemo", "_tkinter.*",
)  # fmt: skip
ALWAYS = ("libdl.so.2", "libpthread.so.0", "librt.so.1")  # of the same C library: NVML, which is loaded later, needs them
FOUND = re.compile(r"^\s+(?:(\S+) => )?(/\S+) \(0x", re.MULTILINE)


def main(root: Path, prefix: str) -> None:
    place = root / prefix.lstrip("/")
    home, venv = place / "python", place / "venv"
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    shutil.rmtree(home, ignore_errors=True)
    (home / "bin").mkdir(parents=True)
    program = Path(shutil.copy(Path("/proc/self/exe").resolve(), home / "bin" / name))
    stdlib = home / "lib" / name
    shutil.copytree(sysconfig.get_path("stdlib"), stdlib, ignore=LEFT_OUT, ignore_dangling_symlinks=True)
    modules = [*stdlib.rglob("*.so"), *venv.rglob("*.so*")]
    _copy_libraries([program, *modules], home / "lib", within=place)
    loader = Path(_output("patchelf", "--print-interpreter", program)).name
    _output("patchelf", "--set-interpreter", f"{prefix}/python/lib/{loader}", program)
    _output("patchelf", "--force-rpath", "--set-rpath", "$ORIGIN/../lib", program)
    for module in modules:  # a RUNPATH would hide the program's RPATH from what the module needs
        if "sim/lib" not in str(module) and (path := _output("patchelf", "--print-rpath", module)):
            _output("patchelf", "--force-rpath", "--set-rpath", path, module)
    for link in venv.glob("bin/python*"):
        link.unlink()
        link.symlink_to(f"../../python/bin/{name}")
    settings = venv / "pyvenv.cfg"
    settings.write_text(re.sub(r"(?m)^home = .*", f"home = {prefix}/python/bin", settings.read_text()))


def _copy_libraries(files: list[Path], to: Path, within: Path) -> None:
    """Copy what the files need from outside the installation, the loader too."""
    found: dict[str, str] = {}
    for file in files:
        for soname, path in FOUND.findall(_output("ldd", file)):
            if not Path(path).is_relative_to(within):
                found[soname or Path(path).name] = path
    libc = Path(found["libc.so.6"]).parent
    found |= {name: str(libc / name) for name in ALWAYS}
    for name, path in found.items():
        shutil.copy(path, to / name)


def _output(*words: str | Path) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, words))}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
