/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* The records that readers of /dev/mpsd-fault see.  It knows nothing of GPUs. */
#ifndef UVM_MPSD_RING_H
#define UVM_MPSD_RING_H

#include <linux/types.h>
#include <linux/wait.h>

#include "mpsd_fault.h"

#define MPSD_RING_RECORDS 1024 /* a power of two */

/* 0, or -ENOMEM.  Context: may sleep. */
int mpsd_ring_open(void);
void mpsd_ring_close(void);

/* Fills in size, major, sequence and time, and wakes readers.  Drops the oldest.  Context: any but NMI; does not sleep. */
void mpsd_ring_push(struct mpsd_fault_record *record);

/*
 * Copies the record after *place, the sequence of the one read last, and moves *place there. False: no record waits. Records
 * that were overwritten in between are counted in `lost`. Context: any but NMI; does not sleep.
 */
bool mpsd_ring_take(u64 *place, struct mpsd_fault_record *record);

/* The sequence of the newest record; 0 before the first.  Context: any. */
u64 mpsd_ring_newest(void);

/* Woken by each push. */
extern wait_queue_head_t mpsd_ring_readers;

#endif
