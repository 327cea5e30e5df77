"""Build mpsd._native and mpsd_client._native from C headers, through cffi.

Each header is preprocessed with MPSD_CDEF defined, which leaves only its declarations. The build needs a C compiler,
Python's headers and cffi, but not setuptools; an error names the one that is missing.
"""

import os
import shutil
import subprocess
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cffi import FFI

FLAGS = ["-O3", "-g", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-unused-function"]
LIBRARIES = ["dl", "pthread"]


def compiler() -> list[str]:
    """Return the C compiler's command. Exits with a message if the compiler or Python.h is missing."""
    words = os.environ.get("CC", "cc" if shutil.which("cc") else "gcc").split()
    missing = [] if words and shutil.which(words[0]) else [f"a C compiler (gcc): no {' '.join(words)}"]
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    if not header.exists():
        missing.append(f"Python's headers (python3-dev): no {header}")
    if missing:
        raise SystemExit(f"mpsd's C parts need {', and '.join(missing)}. On Debian or Ubuntu: apt-get install gcc python3-dev")
    return words


def declarations(header: Path, *flags: str) -> str:
    """Return the declarations of a header in the form that cffi parses."""
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
        """Return the cffi builder that setuptools' `cffi_modules` calls."""
        made = FFI()
        made.cdef(self.declared)
        made.set_source(
            self.module,
            self.source,
            include_dirs=[str(each) for each in self.folders],
            extra_compile_args=FLAGS,
            extra_link_args=["-s"],  # a wheel has no symbols for a debugger
            libraries=LIBRARIES,
        )
        return made

    def build_in_place(self, package: Path) -> Path:
        """Build the module among its package's sources, as in an editable installation, and return its path. It is replaced
        atomically, since another process may be loading it. Raises CalledProcessError."""
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
