// SPDX-License-Identifier: MIT OR GPL-2.0
/* Convert UVM's values to those of records. */
#include <linux/cred.h>
#include <linux/mm_types.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/sched/task.h>
#include <linux/user_namespace.h>

#include "uvm_mpsd_compat.h"
#include "uvm_mpsd_record.h"
#include "uvm_types.h"

/* UvmEventFaultType has no value for UVM_FAULT_TYPE_READ: 0. */
static const u8 fault_types[UVM_FAULT_TYPE_COUNT] = {
	[UVM_FAULT_TYPE_INVALID_PDE] = UvmFaultTypeInvalidPde,
	[UVM_FAULT_TYPE_INVALID_PTE] = UvmFaultTypeInvalidPte,
	[UVM_FAULT_TYPE_ATOMIC] = UvmFaultTypeAtomic,
	[UVM_FAULT_TYPE_WRITE] = UvmFaultTypeWrite,
	[UVM_FAULT_TYPE_PDE_SIZE] = UvmFaultTypeInvalidPdeSize,
	[UVM_FAULT_TYPE_VA_LIMIT_VIOLATION] = UvmFaultTypeLimitViolation,
	[UVM_FAULT_TYPE_UNBOUND_INST_BLOCK] = UvmFaultTypeUnboundInstBlock,
	[UVM_FAULT_TYPE_PRIV_VIOLATION] = UvmFaultTypePrivViolation,
	[UVM_FAULT_TYPE_PITCH_MASK_VIOLATION] = UvmFaultTypePitchMaskViolation,
	[UVM_FAULT_TYPE_WORK_CREATION] = UvmFaultTypeWorkCreation,
	[UVM_FAULT_TYPE_UNSUPPORTED_APERTURE] = UvmFaultTypeUnsupportedAperture,
	[UVM_FAULT_TYPE_COMPRESSION_FAILURE] = UvmFaultTypeCompressionFailure,
	[UVM_FAULT_TYPE_UNSUPPORTED_KIND] = UvmFaultTypeUnsupportedKind,
	[UVM_FAULT_TYPE_REGION_VIOLATION] = UvmFaultTypeRegionViolation,
	[UVM_FAULT_TYPE_POISONED] = UvmFaultTypePoison,
#if defined(MPSD_HAS_CC_VIOLATION)
	[UVM_FAULT_TYPE_CC_VIOLATION] = UvmFaultTypeCcViolation,
#endif
};

static const u8 access_types[UVM_FAULT_ACCESS_TYPE_COUNT] = {
	[UVM_FAULT_ACCESS_TYPE_PREFETCH] = UvmEventMemoryAccessTypePrefetch,
	[UVM_FAULT_ACCESS_TYPE_READ] = UvmEventMemoryAccessTypeRead,
	[UVM_FAULT_ACCESS_TYPE_WRITE] = UvmEventMemoryAccessTypeWrite,
	[UVM_FAULT_ACCESS_TYPE_ATOMIC_WEAK] = UvmEventMemoryAccessTypeAtomic,
	[UVM_FAULT_ACCESS_TYPE_ATOMIC_STRONG] = UvmEventMemoryAccessTypeAtomic,
};

/*
 * UVM records no pid. The VA space keeps the mm until the state is RELEASED; a late bottom half can still come, and find the
 * pointer. The mm's owner, if the kernel tracks one, is read under RCU.
 */
struct pid *mpsd_record_owner(uvm_va_space_t *va_space, bool *is_known)
{
	struct pid *process = NULL;

	*is_known = false;
#if defined(CONFIG_MEMCG)
	uvm_spin_lock(&va_space->va_space_mm.lock);
	if (va_space->va_space_mm.mm && va_space->va_space_mm.state != UVM_VA_SPACE_MM_STATE_RELEASED) {
		struct task_struct *task;

		*is_known = true;
		rcu_read_lock();
		task = rcu_dereference(va_space->va_space_mm.mm->owner);
		if (task)
			process = get_pid(task_tgid(task));
		rcu_read_unlock();
	}
	uvm_spin_unlock(&va_space->va_space_mm.lock);
#endif
	return process;
}

static void add_process(struct mpsd_fault_record *record, struct pid *process)
{
	struct task_struct *task;

	record->tgid = pid_nr(process);
	rcu_read_lock();
	task = pid_task(process, PIDTYPE_TGID);
	if (task) {
		record->uid = from_kuid(&init_user_ns, task_uid(task));
		record->start_ns = task->start_boottime;
		get_task_comm(record->comm, task);
	}
	rcu_read_unlock();
}

void mpsd_record_client(struct mpsd_fault_record *record, uvm_gpu_va_space_t *gpu_va_space, struct pid *process)
{
	uvm_gpu_t *gpu = gpu_va_space->gpu;

	BUILD_BUG_ON(sizeof(record->gpu_uuid) != sizeof(gpu->parent->uuid.uuid));
	memcpy(record->gpu_uuid, gpu->parent->uuid.uuid, sizeof(record->gpu_uuid));
	record->gpu_instance = mpsd_gpu_instance(gpu);
	if (process)
		add_process(record, process);
}

void mpsd_record_fault(struct mpsd_fault_record *record, const uvm_fault_buffer_entry_t *fault)
{
	const uvm_fault_source_t *source = &fault->fault_source;

	if (fault->is_replayable) {
		record->flags |= MPSD_FAULT_REPLAYABLE;
		record->gpc_id = source->gpc_id;
	} else {
		record->channel = source->channel_id;
	}
	record->gpu_ns = fault->timestamp;
	record->address = fault->fault_address;
	record->ve_id = source->ve_id;
	record->client_id = source->client_id;
	record->client_type = source->client_type;
	record->engine_type = source->mmu_engine_type;
	record->access_type = access_types[fault->fault_access_type];
	record->fault_type = fault_types[fault->fault_type];
	record->reason = fault->fatal_reason;
}
