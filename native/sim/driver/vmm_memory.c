/* Virtual memory management: memory by handle, and handing it to other processes. */
#include "vmm.h"

#include <stdlib.h>
#include <string.h>

pthread_mutex_t vmm_lock = PTHREAD_MUTEX_INITIALIZER;

/* Under vmm_lock.  Of a free place `next` is the next one, counted from 1. */
static struct place {
	struct memory *memory;
	uint32_t uses, next;
} *places;
static uint32_t room, end, first_free;

/* A handle is a place, from 1, and above it how often that has been used: no old one fits. */
struct memory *vmm_memory(CUmemGenericAllocationHandle handle)
{
	uint32_t number = (uint32_t)handle;
	struct memory *memory = number && number <= end ? places[number - 1].memory : NULL;

	return memory && memory->handle == handle && memory->handles ? memory : NULL;
}

void vmm_drop(struct memory *memory, unsigned *count)
{
	struct place *place = &places[memory->number - 1];

	--*count;
	if (memory->handles || memory->mappings)
		return;
	block_drop(memory->block);
	if (memory->counted)
		memory_uncount(memory->gpu, memory->bytes);
	*place = (struct place){ .uses = place->uses, .next = first_free };
	first_free = memory->number;
	free(memory);
}

static uint32_t take_place(void)
{
	uint32_t number = first_free;

	if (number) {
		first_free = places[number - 1].next;
		return number;
	}
	if (end == room) {
		uint32_t more = room ? room * 2 : 64;
		struct place *grown = realloc(places, more * sizeof(*places));

		if (!grown)
			return 0;
		places = grown;
		room = more;
	}
	places[end] = (struct place){ 0 };
	return ++end;
}

/* We have the block once; on failure no more. */
static CUresult adopt(const struct memory *made, CUmemGenericAllocationHandle *handle)
{
	struct memory *memory = malloc(sizeof(*memory));
	uint32_t number;

	pthread_mutex_lock(&vmm_lock);
	number = memory ? take_place() : 0;
	if (number) {
		struct place *place = &places[number - 1];

		*memory = *made;
		memory->handles = 1;
		memory->number = number;
		memory->handle = (CUmemGenericAllocationHandle)++place->uses << 32 | number;
		place->memory = memory;
		*handle = memory->handle;
	}
	pthread_mutex_unlock(&vmm_lock);
	if (number)
		return CUDA_SUCCESS;
	free(memory);
	block_drop(made->block);
	return CUDA_ERROR_OUT_OF_MEMORY;
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
	struct memory made = { .bytes = size, .counted = true };
	CUcontext context;
	CUresult rc = context_current(&context);

	if (rc != CUDA_SUCCESS)
		return rc;
	if (!handle || !prop || flags || !size || size % GRANULE || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
	    !vmm_is_device(&prop->location) || prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_INVALID_VALUE;
	made.gpu = driver.view.gpu[prop->location.id];
	made.may_export = prop->requestedHandleTypes;
	rc = memory_count(context, size);
	if (rc != CUDA_SUCCESS)
		return rc;
	rc = block_create(made.gpu, size, &made.block) < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
	if (rc == CUDA_SUCCESS)
		rc = adopt(&made, handle);
	if (rc != CUDA_SUCCESS)
		memory_uncount(made.gpu, size);
	return rc;
}

SIM_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	struct memory *memory;

	pthread_mutex_lock(&vmm_lock);
	memory = vmm_memory(handle);
	if (memory)
		vmm_drop(memory, &memory->handles);
	pthread_mutex_unlock(&vmm_lock);
	return memory ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Imported memory cannot be exported again: seen on an H200, driver 580. The descriptor that it came with can be sent on. */
static bool may_export(const struct memory *memory)
{
	return memory->may_export && memory->counted;
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
	if (memory && may_export(memory))
		fd = block_export(memory->block);
	pthread_mutex_unlock(&vmm_lock);
	if (fd < 0)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(shareableHandle, &fd, sizeof(fd));
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *osHandle,
						   CUmemAllocationHandleType shHandleType)
{
	struct memory made = { .may_export = true };

	if (driver_check() != CUDA_SUCCESS)
		return driver_check();
	if (!handle || shHandleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_INVALID_VALUE;
	if (block_import((int)(intptr_t)osHandle, &made.gpu, &made.bytes, &made.block) < 0)
		return CUDA_ERROR_UNKNOWN;
	return adopt(&made, handle);
}

SIM_EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
	struct memory *memory;

	pthread_mutex_lock(&vmm_lock);
	memory = vmm_memory(handle);
	if (memory && prop) {
		memset(prop, 0, sizeof(*prop));
		prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
		if (memory->may_export)
			prop->requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
		prop->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
		for (unsigned i = 0; i < driver.view.count; i++)
			if (driver.view.gpu[i] == memory->gpu)
				prop->location.id = (int)i;
	}
	pthread_mutex_unlock(&vmm_lock);
	return memory && prop ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
