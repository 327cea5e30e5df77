/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Stops the channels of one client through RM.
 *
 * RM waits for each channel to be idle, which its windows let it become, at most for its default time-out; then it preempts it.
 * So no lock of UVM's may be held meanwhile: a thread of the client that unmaps managed memory waits for the VA space's lock
 * with its mmap_lock held for writing, and the GPU's bottom half waits for that mmap_lock, with the faults of all clients.
 */
#ifndef UVM_MPSD_STOP_H
#define UVM_MPSD_STOP_H

#include "uvm_forward_decl.h"

/*
 * Has RM stop every channel of the VA space, on all GPUs; none is added from here on. The caller does not learn whether RM has
 * succeeded: nvUvmInterfaceStopChannel() returns nothing.
 *
 * Context: a kernel thread for which the VA space and `gpu_va_space` wait before they go; takes the VA space's lock; sleeps,
 * for seconds if a kernel does not end.
 */
void mpsd_stop_channels(uvm_gpu_va_space_t *gpu_va_space);

#endif
