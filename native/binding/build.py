"""mpsd._native, as the headers have it: the keeper's messages, how a connection comes to it, how a descriptor is looked at, the
ioctls of nvidia-uvm, how blocks of images are read and their parity is made, and calls of libc (libc.h).

`pip install` runs it through setup.py.  As a program it builds the module in place: python native/binding/build.py
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "native/binding"))

from declarations import Binding, declarations  # noqa: E402

HEADERS = (
    "mpsd_accept.h",
    "mpsd_cached.h",
    "mpsd_image.h",
    "mpsd_lane.h",
    "mpsd_keeper.h",
    "mpsd_parity.h",
    "mpsd_poll.h",
    "mpsd_uvm.h",
)
# Constants that the C header defines as macros, because an enum cannot hold so large a number.
MACROS = "#define MPSD_UVM_UNANSWERED ...\n"


def binding() -> Binding:
    here, include = ROOT / "native/binding", ROOT / "native/include"
    headers = (*(include / each for each in HEADERS), here / "libc.h")
    declared = "".join(map(declarations, headers)) + MACROS
    source = "".join(f"#include <{each.name}>\n" for each in headers)
    return Binding("mpsd._native", declared, source, (include, here))


def ffi() -> object:
    return binding().builder()


if __name__ == "__main__":
    print(binding().build_in_place(ROOT / "mpsd"))
