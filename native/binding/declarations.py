"""From C headers to a module of Python, through cffi: what mpsd._native and mpsd_client._native are built with.

A header is preprocessed with MPSD_CDEF defined: only its declarations remain.  Needs a C compiler, Python's headers and cffi,
and no setuptools; what is missing is said by name.
"""

import os
import shutil
import subprocess
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cffi import FFI

FLAGS = ["-O2", "-g", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-unused-function"]
LIBRARIES = ["dl", "pthread"]


def compiler() -> list[str]:
    """Ends the program where there is none, or where Python.h is missing."""
    words = os.environ.get("CC", "cc" if shutil.which("cc") else "gcc").split()
    missing = [] if words and shutil.which(words[0]) else [f"a C compiler (gcc): no {' '.join(words)}"]
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    if not header.exists():
        missing.append(f"Python's headers (python3-dev): no {header}")
    if missing:
        raise SystemExit(f"mpsd's C parts need {', and '.join(missing)}. On Debian or Ubuntu: apt-get install gcc python3-dev")
    return words


def declarations(header: Path, *flags: str) -> str:
    """What a header declares, as cffi takes it."""
    command = [*compiler(), "-E", "-P", "-DMPSD_CDEF", *flags, str(header)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


@dataclass(frozen=True, slots=True)
class Binding:
    """module: its dotted name.  declared: what Python sees.  source: C, in which all of that is there.  folders: of headers."""

    module: str
    declared: str
    source: str
    folders: tuple[Path, ...]

    def builder(self) -> FFI:
        """What setuptools' cffi_modules wants."""
        made = FFI()
        made.cdef(self.declared)
        made.set_source(
            self.module,
            self.source,
            include_dirs=[str(each) for each in self.folders],
            extra_compile_args=FLAGS,
            libraries=LIBRARIES,
        )
        return made

    def build_in_place(self, package: Path) -> Path:
        """The module among its package's sources, as an editable installation has it.  It is replaced at once, since others may
        load it meanwhile.  Raises CalledProcessError."""
        target = package / f"{self.module.rpartition('.')[2]}.abi3.so"
        new = target.with_name(f".{target.name}.{os.getpid()}")
        folders = [f"-I{each}" for each in (*self.folders, sysconfig.get_paths()["include"])]
        with tempfile.TemporaryDirectory() as place:
            generated = Path(place, "module.c")
            self.builder().emit_c_code(str(generated))
            command = [*compiler(), "-shared", "-fPIC", *FLAGS, *folders, str(generated), "-o", str(new)]
            subprocess.run([*command, *(f"-l{each}" for each in LIBRARIES)], check=True)
        new.replace(target)
        return target
