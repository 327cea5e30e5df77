/* What the two files of virtual memory management share. */
#ifndef MPSD_SIM_VMM_H
#define MPSD_SIM_VMM_H

#include "driver.h"

enum { GRANULE = 2 << 20 };

struct memory { /* what a handle stands for; shared by handles and mappings */
	int fd;
	unsigned gpu;
	uint64_t bytes;
	unsigned references;
	bool counted; /* against our limit: we created it */
	struct memory *next;
};

extern pthread_mutex_t vmm_lock; /* protects all memories, mappings and reservations; memory_*() may be called under it */

/* vmm_memory.c; the caller holds vmm_lock */
struct memory *vmm_memory(CUmemGenericAllocationHandle handle); /* NULL: no such handle */
void vmm_drop(struct memory *memory);                           /* one reference */
bool vmm_is_device(const CUmemLocation *location);

#endif
