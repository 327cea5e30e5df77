/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* Convert UVM's values to those of a record: the owner of a VA space, the GPU, the fault packet. */
#ifndef UVM_MPSD_RECORD_H
#define UVM_MPSD_RECORD_H

#include <linux/pid.h>

#include "mpsd_fault.h"
#include "uvm_forward_decl.h"
#include "uvm_hal_types.h"

/*
 * The process that made it, with a reference that the caller puts. NULL and *is_known: it is gone. NULL and not *is_known: it
 * cannot be determined (several processes share the VA space, UVM was loaded with uvm_enable_va_space_mm=0, the kernel was
 * built without CONFIG_MEMCG). Takes and drops a leaf lock of UVM's; does not sleep.
 */
struct pid *mpsd_record_owner(uvm_va_space_t *va_space, bool *is_known);

/* Fills in GPU and process.  Borrows `process`, which may be NULL.  Does not sleep. */
void mpsd_record_client(struct mpsd_fault_record *record, uvm_gpu_va_space_t *gpu_va_space, struct pid *process);

/* Fills in the values of the fault packet. Does not sleep. */
void mpsd_record_fault(struct mpsd_fault_record *record, const uvm_fault_buffer_entry_t *fault);

#endif
