/* guard.h: one guard, made by this process's UVM: sparse (reads give 0, writes vanish), or managed, so that mpsd also sees the
 * access.
 *
 * It does not use the ledger: the caller ensures that the range holds no memory. Prose: docs/shim.md, "The shield". */
#ifndef SHIM_GUARD_H
#define SHIM_GUARD_H

#include "shim.h"

/* 0; -errno, or -GUARD_STATUS - status of UVM; then nothing is laid.  base, bytes: multiples of 64 KiB, within addresses that
 * this process has reserved with the driver. */
#define GUARD_STATUS 4096
int guard_lay(const CUuuid *gpu, uint64_t base, uint64_t bytes, bool is_managed);
/* The whole of what was laid at once. */
int guard_lift(uint64_t base, uint64_t bytes, bool is_managed);
const char *guard_why(int rc);

#endif
