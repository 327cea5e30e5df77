/* Facts about devices.  The SM count is what the MPS share leaves. */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct machine_gpu *gpu_of(CUdevice device)
{
	if (device < 0 || (unsigned)device >= driver.view.count)
		return NULL;
	return &machine_open()->gpus[driver.view.gpu[device]];
}

SIM_EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	if (driver_check() != CUDA_SUCCESS)
		return driver_check();
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	if (!gpu_of(ordinal))
		return CUDA_ERROR_INVALID_DEVICE;
	*device = ordinal;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceGetCount(int *count)
{
	if (driver_check() != CUDA_SUCCESS)
		return driver_check();
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	*count = (int)driver.view.count;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
{
	if (driver_check() != CUDA_SUCCESS)
		return driver_check();
	if (!gpu_of(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!name || len <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	snprintf(name, (size_t)len, "%s", gpu_of(dev)->name);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
	const char *text;

	if (driver_check() != CUDA_SUCCESS)
		return driver_check();
	if (!gpu_of(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!uuid)
		return CUDA_ERROR_INVALID_VALUE;
	text = gpu_of(dev)->uuid + strlen("GPU-");
	for (unsigned i = 0; i < sizeof(uuid->bytes); i++, text += 2) {
		char digits[3] = { 0 };

		text += *text == '-';
		memcpy(digits, text, 2);
		uuid->bytes[i] = (char)strtoul(digits, NULL, 16);
	}
	return CUDA_SUCCESS;
}

bool device_has_uuid(const unsigned char *uuid)
{
	CUuuid ours;

	for (unsigned i = 0; i < driver.view.count; i++)
		if (cuDeviceGetUuid_v2(&ours, (CUdevice)i) == CUDA_SUCCESS && memcmp(ours.bytes, uuid, sizeof(ours.bytes)) == 0)
			return true;
	return false;
}

SIM_EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
	if (driver_check() != CUDA_SUCCESS)
		return driver_check();
	if (!gpu_of(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	*bytes = gpu_of(dev)->memory_bytes - ((uint64_t)MACHINE_RESERVED_MIB << 20);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceGetPCIBusId(char *pciBusId, int len, CUdevice dev)
{
	if (driver_check() != CUDA_SUCCESS)
		return driver_check();
	if (!gpu_of(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!pciBusId || len < 13)
		return CUDA_ERROR_INVALID_VALUE;
	snprintf(pciBusId, (size_t)len, "0000:00:%02X.0", driver.view.gpu[dev] + 6);
	return CUDA_SUCCESS;
}

static int attribute_of(CUdevice_attribute attribute, CUdevice device)
{
	unsigned gpu = driver.view.gpu[device];

	switch (attribute) {
	case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
		return 1024;
	case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
		return 32;
	case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
		return 1755000;
	case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
		return (int)machine_sms(gpu, driver.mps ? mps_percent(&driver.link) : 100.0);
	case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
		return (int)machine_open()->gpus[gpu].mode;
	case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
		return (int)gpu + 6;
	case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
	case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
	case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
		return 1;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
		return 9;
	default:
		return 0;
	}
}

SIM_EXPORT CUresult cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice dev)
{
	if (driver_check() != CUDA_SUCCESS)
		return driver_check();
	if (!gpu_of(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!pi)
		return CUDA_ERROR_INVALID_VALUE;
	*pi = attribute_of(attrib, dev);
	return CUDA_SUCCESS;
}
