"""The headers that C and Python share, as cffi has compiled them: `ffi` for their structures, `lib` for their numbers.

native/include/ is the truth; native/binding/build.py makes mpsd._native of it.  No I/O.
"""

from typing import Any

try:
    from mpsd._native import ffi as _ffi
    from mpsd._native import lib as _lib
except ImportError as exc:
    raise ImportError(f"mpsd's C part is not built: `make`, or `python native/binding/build.py` ({exc})") from None

ffi: Any = _ffi
lib: Any = _lib
