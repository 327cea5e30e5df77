"""mpsd_client._native: the C client (clients/c), DLPack, and PyTorch's allocator, for Python.  Calls let go of the interpreter.

`pip install` runs it through setup.py.  As a program it builds the module in place: python clients/python/native/build.py
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKOUT = next(each for each in (HERE / "checkout", HERE.parents[2]) if each.exists())  # the first: in a source distribution
NEEDED = ("clients/c/include/*.h", "clients/c/include/mpsd/**/*.h", "native/binding/declarations.py")  # of the checkout
C_CLIENT = CHECKOUT / "clients/c/include"
if not (C_CLIENT / "mpsd.h").exists():
    raise SystemExit(f"mpsd-client is built in a checkout of mpsd, beside its C client: no {C_CLIENT}/mpsd.h")
sys.path.insert(0, str(CHECKOUT / "native/binding"))

from declarations import Binding, declarations  # noqa: E402

# The functions of dlpack.h and torch.h that Python calls; the compiler compares them.
OWN = """
struct mpsd_exports;
struct mpsd_export {
    uint64_t address;
    const int64_t *shape;
    const int64_t *strides;
    int32_t ndim;
    int32_t device;
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
    uint8_t is_versioned;
    uint8_t is_read_only;
};
struct mpsd_exports *mpsd_exports_new(void);
void mpsd_exports_leave(struct mpsd_exports *exports);
long mpsd_exports_out(struct mpsd_exports *exports);
void *mpsd_dlpack_capsule(struct mpsd_exports *exports, const struct mpsd_export *asked);

void free(void *pointer);
struct mpsd_arena *mpsd_torch_use(int device, struct mpsd_arena *arena);
int mpsd_torch_forget(struct mpsd_arena *arena);
void *mpsd_torch_alloc(ssize_t size, int device, void *stream);
void mpsd_torch_free(void *address, ssize_t size, int device, void *stream);
extern "Python" int mpsd_client_enter(void *entrance, const char *gpu);
"""
SOURCE = """
#define MPSD_NO_CUDA_H
#include <mpsd.h>
#include "dlpack.h"
#include "torch.h"
"""


def binding() -> Binding:
    declared = declarations(C_CLIENT / "mpsd.h", "-DMPSD_NO_CUDA_H", "-DMPSD_API=") + OWN
    return Binding("mpsd_client._native", declared, SOURCE, (C_CLIENT, HERE))


def ffi() -> object:
    return binding().builder()


if __name__ == "__main__":
    print(binding().build_in_place(HERE.parent / "mpsd_client"))
