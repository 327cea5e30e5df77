/* SPDX-License-Identifier: MIT */
/* A driver in the process, which counts: what the client asked for must all be given back.  Any thread may call. */
#ifndef MPSD_TEST_FAKE_DRIVER_H
#define MPSD_TEST_FAKE_DRIVER_H

#include <mpsd.h>

enum { FAKE_CREATED = 1, FAKE_IMPORTED = 2 }; /* handles */

static struct {
	pthread_mutex_t lock;
	long handles, windows, mappings, calls;
	unsigned fail_permille; /* how many calls that may fail do */
	unsigned seed;
} fake = { PTHREAD_MUTEX_INITIALIZER, 0, 0, 0, 0, 0, 1 };

static CUresult fake_count(long *what, long change, CUresult failure)
{
	CUresult rc = CUDA_SUCCESS;

	pthread_mutex_lock(&fake.lock);
	fake.calls++;
	fake.seed = fake.seed * 1664525u + 1013904223u;
	if (failure != CUDA_SUCCESS && (fake.seed >> 16) % 1000 < fake.fail_permille)
		rc = failure;
	else
		*what += change;
	pthread_mutex_unlock(&fake.lock);
	return rc;
}

static CUresult fake_create(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags)
{
	(void)size;
	(void)prop;
	(void)flags;
	*handle = FAKE_CREATED;
	return fake_count(&fake.handles, 1, CUDA_ERROR_OUT_OF_MEMORY);
}

static CUresult fake_release(CUmemGenericAllocationHandle handle)
{
	(void)handle;
	return fake_count(&fake.handles, -1, CUDA_SUCCESS);
}

static CUresult fake_export(void *out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type, unsigned long long flags)
{
	long none = 0;
	CUresult rc = fake_count(&none, 0, CUDA_ERROR_UNKNOWN);
	int fd;

	(void)type;
	(void)flags;
	if (handle == FAKE_IMPORTED) /* as the real driver does */
		return CUDA_ERROR_INVALID_VALUE;
	if (rc != CUDA_SUCCESS)
		return rc;
	fd = memfd_create("fake", MFD_CLOEXEC);
	memcpy(out, &fd, sizeof(fd));
	return fd < 0 ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

static CUresult fake_import(CUmemGenericAllocationHandle *handle, void *fd, CUmemAllocationHandleType type)
{
	(void)type;
	if (fcntl((int)(intptr_t)fd, F_GETFD) < 0)
		return CUDA_ERROR_INVALID_VALUE;
	*handle = FAKE_IMPORTED;
	return fake_count(&fake.handles, 1, CUDA_ERROR_UNKNOWN);
}

static CUresult fake_reserve(CUdeviceptr *out, size_t size, size_t alignment, CUdeviceptr wish, unsigned long long flags)
{
	(void)size;
	(void)alignment;
	(void)flags;
	*out = wish;
	return fake_count(&fake.windows, 1, CUDA_ERROR_INVALID_VALUE);
}

static CUresult fake_unreserve(CUdeviceptr address, size_t size)
{
	(void)address;
	(void)size;
	return fake_count(&fake.windows, -1, CUDA_SUCCESS);
}

static CUresult fake_map(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	(void)address;
	(void)offset;
	(void)handle;
	(void)flags;
	return fake_count(&fake.mappings, (long)(size / MPSD_GRANULE), CUDA_ERROR_NOT_SUPPORTED);
}

static CUresult fake_unmap(CUdeviceptr address, size_t size)
{
	(void)address;
	return fake_count(&fake.mappings, -(long)(size / MPSD_GRANULE), CUDA_SUCCESS);
}

static CUresult fake_access(CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t count)
{
	long none = 0;

	(void)address;
	(void)size;
	(void)access;
	(void)count;
	return fake_count(&none, 0, CUDA_ERROR_INVALID_VALUE);
}

static CUresult fake_device(CUdevice *device)
{
	*device = 0;
	return CUDA_SUCCESS;
}

static CUresult fake_device_get(CUdevice *device, int ordinal)
{
	*device = ordinal;
	return CUDA_SUCCESS;
}

static CUresult fake_uuid(CUuuid *uuid, CUdevice device)
{
	(void)device;
	memset(uuid, 0x11, sizeof(*uuid));
	return CUDA_SUCCESS;
}

static CUresult fake_synchronize(void)
{
	return CUDA_SUCCESS;
}

#define FAKE_GPU "GPU-11111111-1111-1111-1111-111111111111"

static const struct mpsd_driver fake_driver = {
	.cuMemCreate = fake_create,
	.cuMemRelease = fake_release,
	.cuMemExportToShareableHandle = fake_export,
	.cuMemImportFromShareableHandle = fake_import,
	.cuMemAddressReserve = fake_reserve,
	.cuMemAddressFree = fake_unreserve,
	.cuMemMap = fake_map,
	.cuMemUnmap = fake_unmap,
	.cuMemSetAccess = fake_access,
	.cuCtxGetDevice = fake_device,
	.cuDeviceGet = fake_device_get,
	.cuDeviceGetUuid_v2 = fake_uuid,
	.cuCtxSynchronize = fake_synchronize,
};

#endif
