/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* How UVM's values are said in a record: whose a VA space is, which GPU, what the fault packet told. */
#ifndef UVM_MPSD_RECORD_H
#define UVM_MPSD_RECORD_H

#include <linux/pid.h>

#include "mpsd_fault.h"
#include "uvm_forward_decl.h"
#include "uvm_hal_types.h"

/* The process that made it, with a reference that the caller puts; NULL: it is gone, or the VA space is shared.  Does not sleep. */
struct pid *mpsd_record_owner(uvm_va_space_t *va_space);

/* Fills in GPU and process.  Borrows `process`, which may be NULL.  Does not sleep. */
void mpsd_record_client(struct mpsd_fault_record *record, uvm_gpu_va_space_t *gpu_va_space, struct pid *process);

/* Fills in what the fault packet told.  Does not sleep. */
void mpsd_record_fault(struct mpsd_fault_record *record, const uvm_fault_buffer_entry_t *fault);

#endif
