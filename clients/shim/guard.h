/* guard.h: one guard, by UVM of this process: sparse (reads give 0, writes vanish), or managed, where mpsd sees the access besides.
 *
 * It knows no ledger: that nothing of anybody's lies there is for the caller to know.  Prose: docs/shim.md, "The shield".
 */
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
