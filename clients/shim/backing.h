/* backing.h: the arena MPSD_ARENA: memory of cuMemAlloc that outlives the process.  placement.c's lock is held in all of this. */
#ifndef SHIM_BACKING_H
#define SHIM_BACKING_H

#include "window.h"

/* The window of the arena, once it is open on this GPU; NULL: it is not, and will not be. */
struct window *backing_open(CUdevice device);
struct window *backing_window(void); /* NULL: not open */
/* 0; -errno: the driver is to allocate it. */
int backing_alloc(size_t bytes, uint64_t *address);
int backing_free(uint64_t address);
/* If something has changed, and the last one did not take too much of the time. */
void backing_commit(bool now);
bool backing_is_dirty(void);

#endif
