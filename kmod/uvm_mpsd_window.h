/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Windows: ranges of one GPU VA space with sparse page-table entries, so that accesses there complete (reads give 0, writes
 * vanish) without a fault. This file handles page tables; the policy is elsewhere.
 */
#ifndef UVM_MPSD_WINDOW_H
#define UVM_MPSD_WINDOW_H

#include <linux/list.h>

#include "mpsd_fault.h"
#include "uvm_forward_decl.h"
#include "uvm_mmu.h"

struct mpsd_window {
	struct list_head node; /* its maker's */
	NvU64 start, end;      /* inclusive, as UVM's ranges are */
	u64 laid_ns;	       /* CLOCK_MONOTONIC, when its entries were last written */
	u32 renewals;
	uvm_page_table_range_vec_t *entries;
};

/*
 * Lays the largest aligned window of at most `bytes` (a power of two, 64 KiB or more) around `address` in which nothing else
 * of the client is, down to 4 KiB; around an access that a mapping does not permit, inside that mapping.
 * MPSD_FAULT_WHY_NONE: *window is the caller's, to be lifted.  Else why not, and nothing has changed.
 *
 * Context: the VA space's lock is held, for reading at least; takes locks of UVM's below it; sleeps.
 */
enum mpsd_fault_why mpsd_window_lay(uvm_gpu_va_space_t *gpu_va_space, NvU64 address, NvU64 bytes, struct mpsd_window **window);

/*
 * An access faulted again where `window` is.  It may have been on its way when the window was laid; the client may since have
 * unmapped what was mapped there, and the window with it: then it is laid again.  MPSD_FAULT_WHY_INEFFECTIVE: often enough.
 * Context: as mpsd_window_lay().
 */
enum mpsd_fault_why mpsd_window_renew(struct mpsd_window *window);

/* Takes `window`, which is in no list.  Context: nothing can fault there any more; sleeps. */
void mpsd_window_lift(struct mpsd_window *window);

#endif
