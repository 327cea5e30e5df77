/* Virtual memory management: memory by handle, and handing it to other processes. */
#include "vmm.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

pthread_mutex_t vmm_lock = PTHREAD_MUTEX_INITIALIZER;

static struct memory *memories; /* under vmm_lock */

struct memory *vmm_memory(CUmemGenericAllocationHandle handle)
{
	for (struct memory *memory = memories; memory; memory = memory->next)
		if ((CUmemGenericAllocationHandle)(uintptr_t)memory == handle && memory->references)
			return memory;
	return NULL;
}

void vmm_drop(struct memory *memory)
{
	struct memory **at = &memories;

	if (--memory->references)
		return;
	while (*at != memory)
		at = &(*at)->next;
	*at = memory->next;
	close(memory->fd);
	if (memory->counted)
		memory_uncount(memory->gpu, memory->bytes);
	free(memory);
}

/* Takes `fd`. */
static CUresult adopt(int fd, unsigned gpu, uint64_t bytes, bool is_counted, CUmemGenericAllocationHandle *handle)
{
	struct memory *memory = calloc(1, sizeof(*memory));

	if (!memory) {
		close(fd);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*memory = (struct memory){ .fd = fd, .gpu = gpu, .bytes = bytes, .references = 1, .counted = is_counted };
	pthread_mutex_lock(&vmm_lock);
	memory->next = memories;
	memories = memory;
	pthread_mutex_unlock(&vmm_lock);
	*handle = (CUmemGenericAllocationHandle)(uintptr_t)memory;
	return CUDA_SUCCESS;
}

bool vmm_is_device(const CUmemLocation *location)
{
	return location->type == CU_MEM_LOCATION_TYPE_DEVICE && location->id >= 0 && (unsigned)location->id < driver.view.count;
}

SIM_EXPORT CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
						  CUmemAllocationGranularity_flags option)
{
	(void)option;
	if (driver_check() != CUDA_SUCCESS)
		return driver_check();
	if (!granularity || !prop || !vmm_is_device(&prop->location))
		return CUDA_ERROR_INVALID_VALUE;
	*granularity = GRANULE;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
				unsigned long long flags)
{
	CUcontext context;
	CUresult rc = context_current(&context);
	unsigned gpu;
	int fd;

	if (rc != CUDA_SUCCESS)
		return rc;
	if (!handle || !prop || flags || !size || size % GRANULE || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
	    !vmm_is_device(&prop->location))
		return CUDA_ERROR_INVALID_VALUE;
	gpu = driver.view.gpu[prop->location.id];
	rc = memory_count(context, size);
	if (rc != CUDA_SUCCESS)
		return rc;
	machine_lock();
	fd = machine_block_create(gpu, size);
	machine_unlock();
	if (fd >= 0)
		return adopt(fd, gpu, size, true, handle);
	memory_uncount(gpu, size);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	struct memory *memory;

	pthread_mutex_lock(&vmm_lock);
	memory = vmm_memory(handle);
	if (memory)
		vmm_drop(memory);
	pthread_mutex_unlock(&vmm_lock);
	return memory ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORT CUresult cuMemExportToShareableHandle(void *shareableHandle, CUmemGenericAllocationHandle handle,
						 CUmemAllocationHandleType handleType, unsigned long long flags)
{
	struct memory *memory;
	int fd = -1;

	if (!shareableHandle || flags || handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&vmm_lock);
	memory = vmm_memory(handle);
	if (memory)
		fd = fcntl(memory->fd, F_DUPFD_CLOEXEC, 3);
	pthread_mutex_unlock(&vmm_lock);
	if (fd < 0)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(shareableHandle, &fd, sizeof(fd));
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *osHandle,
						   CUmemAllocationHandleType shHandleType)
{
	int fd = (int)(intptr_t)osHandle, own, rc;
	uint64_t bytes, id;
	unsigned gpu;

	if (driver_check() != CUDA_SUCCESS)
		return driver_check();
	if (!handle || shHandleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_INVALID_VALUE;
	machine_lock();
	rc = machine_block_find(fd, &gpu, &bytes, &id);
	machine_unlock();
	own = rc < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 3);
	return own < 0 ? CUDA_ERROR_INVALID_VALUE : adopt(own, gpu, bytes, false, handle);
}

SIM_EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
	struct memory *memory;

	pthread_mutex_lock(&vmm_lock);
	memory = vmm_memory(handle);
	if (memory && prop) {
		memset(prop, 0, sizeof(*prop));
		prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
		prop->requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
		prop->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
		for (unsigned i = 0; i < driver.view.count; i++)
			if (driver.view.gpu[i] == memory->gpu)
				prop->location.id = (int)i;
	}
	pthread_mutex_unlock(&vmm_lock);
	return memory && prop ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
