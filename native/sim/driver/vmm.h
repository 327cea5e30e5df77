/* Declarations shared by the two files of virtual memory management. */
#ifndef MPSD_SIM_VMM_H
#define MPSD_SIM_VMM_H

#include "driver.h"

enum { GRANULE = 2 << 20 };

struct memory { /* what a handle stands for */
	uint64_t block; /* machine_block_create() */
	unsigned gpu;
	uint64_t bytes;
	unsigned handles, mappings; /* how many; with the last of both it goes */
	bool may_export;
	bool counted;    /* against our limit: we created it; else it was imported */
	uint32_t number; /* its place in the table, from 1 */
	CUmemGenericAllocationHandle handle;
};

extern pthread_mutex_t vmm_lock; /* protects memories, mappings and reservations; what blocks.c and memory.c lock comes under it */

/* vmm_memory.c; the caller holds vmm_lock */
struct memory *vmm_memory(CUmemGenericAllocationHandle handle); /* NULL: no such handle */
void vmm_drop(struct memory *memory, unsigned *count);          /* release one of its handles or mappings */
bool vmm_is_device(const CUmemLocation *location);

#endif
