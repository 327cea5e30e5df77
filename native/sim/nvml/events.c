/* NVML's events: of Xids, and only of those. */
#include "nvml.h"

#include <stdlib.h>

enum { STEP_MS = 10 }; /* who waits all day must not be seen in top */

struct event_set {
	uint32_t gpus;      /* mask of those registered */
	uint64_t next_xid; /* the first that has not been given */
};

SIM_EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
	if (!nvml_is_ready())
		return NVML_ERROR_UNINITIALIZED;
	if (!set)
		return NVML_ERROR_INVALID_ARGUMENT;
	*set = calloc(1, sizeof(**set));
	if (!*set)
		return NVML_ERROR_UNKNOWN;
	machine_lock();
	(*set)->next_xid = machine_open()->next_xid;
	machine_unlock();
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
	free(set);
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
	nvmlReturn_t rc = nvml_check(device);

	if (rc == NVML_SUCCESS && types)
		*types = NVML_XID_EVENT;
	return rc;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
	nvmlReturn_t rc = nvml_check(device);

	if (rc != NVML_SUCCESS)
		return rc;
	if (!set)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (types & ~(unsigned long long)NVML_XID_EVENT)
		return NVML_ERROR_NOT_SUPPORTED;
	set->gpus |= 1u << nvml_index(device);
	return NVML_SUCCESS;
}

static bool has_lost_gpu(nvmlEventSet_t set)
{
	struct machine_state *state = machine_open();

	for (unsigned gpu = 0; gpu < state->gpu_count; gpu++)
		if (set->gpus & 1u << gpu && state->gpus[gpu].is_lost)
			return true;
	return false;
}

static bool take(nvmlEventSet_t set, nvmlEventData_t *data)
{
	struct machine_state *state = machine_open();
	bool found = false;

	machine_lock();
	if (state->next_xid > MACHINE_XIDS && set->next_xid <= state->next_xid - MACHINE_XIDS)
		set->next_xid = state->next_xid - MACHINE_XIDS + 1; /* the ring has lost them */
	while (!found && set->next_xid < state->next_xid) {
		const struct machine_xid *xid = &state->xids[set->next_xid++ % MACHINE_XIDS];

		if (!(set->gpus & 1u << xid->gpu) || machine_is_lost("MPSD_SIM_NVML_LOSS"))
			continue;
		*data = (nvmlEventData_t){ &state->gpus[xid->gpu], NVML_XID_EVENT, xid->code, ~0u, ~0u };
		found = true;
	}
	machine_unlock();
	return found;
}

SIM_EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
	uint64_t end = machine_now_ns() + (uint64_t)timeout_ms * 1000000u;

	if (!nvml_is_ready())
		return NVML_ERROR_UNINITIALIZED;
	if (!set || !data)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (;;) {
		if (take(set, data))
			return NVML_SUCCESS;
		if (has_lost_gpu(set))
			return NVML_ERROR_GPU_IS_LOST;
		if (machine_now_ns() >= end)
			return NVML_ERROR_TIMEOUT;
		machine_sleep_ms(STEP_MS);
	}
}
