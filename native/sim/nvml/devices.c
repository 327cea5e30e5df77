/* NVML's facts about a device. All GPUs are visible, regardless of CUDA_VISIBLE_DEVICES. */
#include "nvml.h"

#include <stdio.h>
#include <string.h>

unsigned nvml_index(nvmlDevice_t device)
{
	return (unsigned)(device - machine_open()->gpus);
}

nvmlReturn_t nvml_check(nvmlDevice_t device)
{
	struct machine_state *state = machine_open();

	if (!nvml_is_ready() || !state)
		return NVML_ERROR_UNINITIALIZED;
	if (device < state->gpus || device >= state->gpus + state->gpu_count)
		return NVML_ERROR_INVALID_ARGUMENT;
	return device->is_lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
	if (!nvml_is_ready())
		return NVML_ERROR_UNINITIALIZED;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = machine_open()->gpu_count;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
	if (!nvml_is_ready())
		return NVML_ERROR_UNINITIALIZED;
	if (!device || index >= machine_open()->gpu_count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*device = &machine_open()->gpus[index];
	return nvml_check(*device);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	struct machine_view all = machine_all();
	int index;

	if (!nvml_is_ready())
		return NVML_ERROR_UNINITIALIZED;
	if (!uuid || !device || strncmp(uuid, "GPU-", 4) != 0)
		return NVML_ERROR_INVALID_ARGUMENT;
	index = machine_find_gpu(&all, uuid);
	if (index < 0 || strcmp(uuid, machine_open()->gpus[index].uuid) != 0)
		return NVML_ERROR_NOT_FOUND;
	return nvmlDeviceGetHandleByIndex_v2((unsigned)index, device);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device)
{
	unsigned domain, bus, slot, function;

	if (!nvml_is_ready())
		return NVML_ERROR_UNINITIALIZED;
	if (!id || !device || sscanf(id, "%x:%x:%x.%x", &domain, &bus, &slot, &function) != 4)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (bus || slot < 6 || slot - 6 >= machine_open()->gpu_count)
		return NVML_ERROR_NOT_FOUND;
	return nvmlDeviceGetHandleByIndex_v2(slot - 6, device);
}

static nvmlReturn_t give_text(nvmlDevice_t device, const char *text, char *out, unsigned int length)
{
	nvmlReturn_t rc = nvml_check(device);

	if (rc != NVML_SUCCESS)
		return rc;
	if (!out || strlen(text) >= length)
		return out ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_ERROR_INVALID_ARGUMENT;
	strcpy(out, text);
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
	return give_text(device, nvml_check(device) == NVML_SUCCESS ? device->name : "", name, length);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
	return give_text(device, nvml_check(device) == NVML_SUCCESS ? device->uuid : "", uuid, length);
}

static nvmlReturn_t give_number(nvmlDevice_t device, unsigned int value, unsigned int *out)
{
	nvmlReturn_t rc = nvml_check(device);

	if (rc == NVML_SUCCESS && !out)
		rc = NVML_ERROR_INVALID_ARGUMENT;
	if (rc == NVML_SUCCESS)
		*out = value;
	return rc;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
	return give_number(device, nvml_index(device), index);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t device, unsigned int *cores)
{
	return give_number(device, MACHINE_SMS * 128, cores);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
	nvmlReturn_t rc = nvml_check(device);

	if (rc != NVML_SUCCESS)
		return rc;
	if (!major || !minor)
		return NVML_ERROR_INVALID_ARGUMENT;
	*major = 9;
	*minor = 0;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	nvmlReturn_t rc = nvml_check(device);

	if (rc != NVML_SUCCESS)
		return rc;
	if (!pci)
		return NVML_ERROR_INVALID_ARGUMENT;
	*pci = (nvmlPciInfo_t){ .device = nvml_index(device) + 6, .pciDeviceId = 0x233510de };
	snprintf(pci->busIdLegacy, sizeof(pci->busIdLegacy), "0000:00:%02X.0", pci->device);
	snprintf(pci->busId, sizeof(pci->busId), "00000000:00:%02X.0", pci->device);
	return NVML_SUCCESS;
}

/* Also of a GPU that is lost: it is found by its address, not by a handle. */
SIM_EXPORT nvmlReturn_t nvmlDeviceQueryDrainState(nvmlPciInfo_t *pci, unsigned int *state)
{
	if (!nvml_is_ready())
		return NVML_ERROR_UNINITIALIZED;
	if (!pci || !state || pci->domain || pci->bus || pci->device < 6 || pci->device - 6 >= machine_open()->gpu_count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*state = machine_open()->gpus[pci->device - 6].is_drained != 0;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned int *mode)
{
	return give_number(device, nvml_check(device) == NVML_SUCCESS ? device->mode : 0, mode);
}
