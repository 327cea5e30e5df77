/* The processes that use a device, and how much of its memory they use. */
#include "nvml.h"

static uint64_t used_bytes(nvmlDevice_t device)
{
	uint64_t used;

	machine_lock();
	machine_reap();
	used = machine_used_bytes(nvml_index(device));
	machine_unlock();
	return used;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	nvmlReturn_t rc = nvml_check(device);

	if (rc != NVML_SUCCESS)
		return rc;
	if (!memory)
		return NVML_ERROR_INVALID_ARGUMENT;
	memory->total = device->memory_bytes;
	memory->reserved = (uint64_t)MACHINE_RESERVED_MIB << 20;
	memory->used = used_bytes(device);
	memory->free = memory->total - memory->reserved - memory->used;
	return NVML_SUCCESS;
}

/* The first version counts what is reserved as used. */
SIM_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	nvmlMemory_v2_t all;
	nvmlReturn_t rc = memory ? nvmlDeviceGetMemoryInfo_v2(device, &all) : NVML_ERROR_INVALID_ARGUMENT;

	if (rc == NVML_SUCCESS)
		*memory = (nvmlMemory_t){ all.total, all.free, all.used + all.reserved };
	return rc;
}

static nvmlReturn_t give_processes(nvmlDevice_t device, bool mps, unsigned int *count, nvmlProcessInfo_t *infos)
{
	struct machine_state *state = machine_open();
	nvmlReturn_t rc = nvml_check(device);
	unsigned index, room, found = 0;

	if (rc != NVML_SUCCESS)
		return rc;
	if (!count || (*count && !infos))
		return NVML_ERROR_INVALID_ARGUMENT;
	index = nvml_index(device);
	room = *count;
	machine_lock();
	machine_reap();
	for (unsigned i = 0; i < MACHINE_PROCESSES; i++) {
		struct machine_process *process = &state->processes[i];

		if (process->kind == MACHINE_FREE || (process->kind == MACHINE_CLIENT) != mps || !process->contexts[index])
			continue;
		if (found < room)
			infos[found] = (nvmlProcessInfo_t){ (unsigned)process->pid, process->used_bytes[index], ~0u, ~0u };
		found++;
	}
	machine_unlock();
	*count = found;
	return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos)
{
	return give_processes(device, false, count, infos);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos)
{
	return give_processes(device, true, count, infos);
}
