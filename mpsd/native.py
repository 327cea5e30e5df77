"""The C headers that Python shares, compiled by cffi: `ffi` for their structures, `lib` for their constants and functions.

native/include/ has the definitions; native/binding/build.py builds mpsd._native from them.
"""

from typing import Any

try:
    from mpsd._native import ffi as _ffi
    from mpsd._native import lib as _lib
except ImportError as exc:
    raise ImportError(f"mpsd's C part is not built: `make`, or `python native/binding/build.py` ({exc})") from None

ffi: Any = _ffi
lib: Any = _lib
