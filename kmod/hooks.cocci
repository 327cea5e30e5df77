// SPDX-License-Identifier: MIT OR GPL-2.0
// Where UVM calls us: seven calls, in five of its files.  `apply` counts them and takes nothing less.

// The one function through which every fatal fault of an SM goes, before it tells the GPU, or tools that the fault is fatal.
@cancel@
typedef uvm_fault_buffer_entry_t, uvm_fault_cancel_va_mode_t, uvm_gpu_va_space_t;
identifier fault, mode;
expression found;
@@
 cancel_fault_precise_va(..., uvm_fault_buffer_entry_t *fault, uvm_fault_cancel_va_mode_t mode)
 {
 ...
 gpu_va_space = found;
 ...
+if (uvm_mpsd_absorb(gpu_va_space, fault))
+    return NV_OK;
 uvm_tools_record_gpu_fatal_fault(...);
 ...
 }

// Copy engines and hosts: a fault that is no longer fatal lets UVM resume the channel by itself.
@resume@
identifier function, fault, status;
@@
 function(..., uvm_fault_buffer_entry_t *fault, ...)
 {
 <...
+if (status == NV_OK && fault->is_fatal && uvm_mpsd_absorb(gpu_va_space, fault))
+    fault->is_fatal = false;
 if (status == NV_OK && !fault->is_fatal) { status = clear_faulted_on_gpu(...); ... }
 ...>
 }

// A global error: UVM cancels everything that is pending on the GPU, also what it never found fatal, and does not look whether an
// entry is stale.
@batch@
identifier fault, mode, status;
@@
 cancel_faults_all(...)
 {
 <...
+uvm_mpsd_unproven(fault);
 status = cancel_fault_precise_va(..., fault, mode);
 ...>
 }

// RM still has the channel until here.
@channel@
typedef uvm_user_channel_t;
@@
 uvm_user_channel_destroy_detached(uvm_user_channel_t *user_channel)
 {
 ...
+uvm_mpsd_channel_goes(user_channel);
 uvm_tracker_wait_deinit(&user_channel->clear_faulted_tracker);
 ...
 }

@teardown@
@@
 destroy_gpu_va_space(uvm_gpu_va_space_t *gpu_va_space)
 {
 ...
+uvm_mpsd_release(gpu_va_space);
 if (gpu_va_space->page_tables.root) uvm_page_tree_deinit(&gpu_va_space->page_tables);
 ...
 }

@load@
@@
 uvm_init(void)
 {
 ...
 ret = uvm_tools_init(...);
 if (ret != 0) { ... }
+uvm_mpsd_init();
 ...
 }

// After uvm_global_exit(), which ends the VA spaces whose release was deferred.
@unload@
@@
 uvm_exit(void)
 {
 ...
 uvm_global_exit();
+uvm_mpsd_exit();
 ...
 }

@include_faults depends on cancel || resume@
@@
 #include "uvm_tools.h"
+#include "uvm_mpsd.h"

@include_rest depends on teardown || load || channel@
@@
 #include "uvm_va_space.h"
+#include "uvm_mpsd.h"
