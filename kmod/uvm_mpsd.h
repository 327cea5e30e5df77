/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* The functions that hooks.cocci calls. The rest of the module is behind them; UVM's own structures have no field for it. */
#ifndef UVM_MPSD_H
#define UVM_MPSD_H

#include "uvm_forward_decl.h"
#include "uvm_hal_types.h"

/* Context: loading and unloading of the module; may sleep.  Without its device everything takes UVM's own way. */
void uvm_mpsd_init(void);
void uvm_mpsd_exit(void);

/*
 * Called where UVM is about to cancel a fatal fault.  True: the access completes when it is repeated (reads give 0, writes
 * vanish), and its client is being stopped; the caller leaves the cancel out.  False: as if the call were not there.
 *
 * Context: a GPU's bottom half, a kernel thread; sleeps.  The caller holds the VA space's lock for reading, and its mmap_lock
 * where it has an mm; so `gpu_va_space` stays while this runs.  Borrows both pointers.
 */
bool uvm_mpsd_absorb(uvm_gpu_va_space_t *gpu_va_space, const uvm_fault_buffer_entry_t *fault);

/*
 * Called for each fault of a batch that UVM cancels as a whole, before the call above. It is not absorbed, and its record marks
 * it as unproven. Context: as above.
 */
void uvm_mpsd_unproven(uvm_fault_buffer_entry_t *fault);

/*
 * Called before UVM gives a channel back to RM.  Context: a process; no UVM lock is held; sleeps until RM, if it is stopping the
 * channel for us, has done so.  Borrows `channel`.
 */
void uvm_mpsd_channel_goes(uvm_user_channel_t *channel);

/*
 * Called when a GPU VA space goes: no page directory is bound, no bottom half can find it, its page tables still exist.
 *
 * Context: a process, or the thread that ends the VA space; no UVM lock is held; sleeps until a running stop is over.
 */
void uvm_mpsd_release(uvm_gpu_va_space_t *gpu_va_space);

#endif
