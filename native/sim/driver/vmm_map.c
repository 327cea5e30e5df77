/* Virtual memory management: addresses, and putting memory behind them. */
#include "vmm.h"

#include <stdlib.h>
#include <sys/mman.h>

enum { RESERVATIONS = 4096 };

struct mapping {
	CUdeviceptr base;
	size_t bytes;
	size_t offset;
	struct memory *memory;
	struct mapping *next;
};

/* Both under vmm_lock. */
static struct mapping *mappings;
static struct {
	CUdeviceptr base;
	size_t bytes;
} reservations[RESERVATIONS];

bool address_is_reserved(CUdeviceptr address)
{
	bool found = false;

	pthread_mutex_lock(&vmm_lock);
	for (unsigned i = 0; i < RESERVATIONS && !found; i++)
		found = reservations[i].bytes && address - reservations[i].base < reservations[i].bytes;
	pthread_mutex_unlock(&vmm_lock);
	return found;
}

SIM_EXPORT CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr, unsigned long long flags)
{
	CUresult rc = CUDA_ERROR_OUT_OF_MEMORY;

	if (driver_check() != CUDA_SUCCESS)
		return driver_check();
	if (!ptr || !size || size % GRANULE || addr % GRANULE || flags || alignment > GRANULE)
		return CUDA_ERROR_INVALID_VALUE;
	*ptr = address_reserve(size, addr);
	if (!*ptr)
		return rc;
	pthread_mutex_lock(&vmm_lock);
	for (unsigned i = 0; i < RESERVATIONS && rc != CUDA_SUCCESS; i++)
		if (!reservations[i].bytes) {
			reservations[i].base = *ptr;
			reservations[i].bytes = size;
			rc = CUDA_SUCCESS;
		}
	pthread_mutex_unlock(&vmm_lock);
	if (rc != CUDA_SUCCESS)
		munmap((void *)*ptr, size);
	return rc;
}

static bool is_mapped(CUdeviceptr base, size_t bytes)
{
	for (struct mapping *mapping = mappings; mapping; mapping = mapping->next)
		if (mapping->base < base + bytes && base < mapping->base + mapping->bytes)
			return true;
	return false;
}

SIM_EXPORT CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
	CUresult rc = CUDA_ERROR_INVALID_VALUE;

	pthread_mutex_lock(&vmm_lock);
	for (unsigned i = 0; i < RESERVATIONS && !is_mapped(ptr, size); i++)
		if (reservations[i].bytes == size && reservations[i].base == ptr) {
			reservations[i].bytes = 0;
			munmap((void *)ptr, size);
			rc = CUDA_SUCCESS;
			break;
		}
	pthread_mutex_unlock(&vmm_lock);
	return rc;
}

static CUresult map(CUdeviceptr ptr, size_t size, size_t offset, struct memory *memory)
{
	struct mapping *mapping = malloc(sizeof(*mapping));

	if (!mapping)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*mapping = (struct mapping){ ptr, size, offset, memory, mappings };
	if (mmap((void *)ptr, size, PROT_NONE, MAP_SHARED | MAP_FIXED, memory->fd, (off_t)offset) == MAP_FAILED ||
	    address_add(ptr, size, 0, memory->gpu) < 0) {
		free(mapping);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	mappings = mapping;
	memory->references++;
	return CUDA_SUCCESS;
}

/* Without access until cuMemSetAccess. */
SIM_EXPORT CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
			     unsigned long long flags)
{
	CUresult rc = CUDA_ERROR_INVALID_VALUE;
	struct memory *memory;

	if (!size || size % GRANULE || offset % GRANULE || flags || !address_is_reserved(ptr) || !address_is_reserved(ptr + size - 1))
		return rc;
	pthread_mutex_lock(&vmm_lock);
	memory = vmm_memory(handle);
	if (memory && !is_mapped(ptr, size) && offset <= memory->bytes && size <= memory->bytes - offset)
		rc = map(ptr, size, offset, memory);
	pthread_mutex_unlock(&vmm_lock);
	return rc;
}

SIM_EXPORT CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
	CUresult rc = CUDA_ERROR_INVALID_VALUE;
	unsigned gpu;

	pthread_mutex_lock(&vmm_lock);
	for (struct mapping **at = &mappings; *at;) {
		struct mapping *mapping = *at;

		if (mapping->base < ptr || mapping->base + mapping->bytes > ptr + size) {
			at = &mapping->next;
			continue;
		}
		address_remove(mapping->base, &gpu);
		mmap((void *)mapping->base, mapping->bytes, PROT_NONE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
		vmm_drop(mapping->memory);
		*at = mapping->next;
		free(mapping);
		rc = CUDA_SUCCESS;
	}
	pthread_mutex_unlock(&vmm_lock);
	return rc;
}

SIM_EXPORT CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
	CUresult rc = CUDA_ERROR_INVALID_VALUE;
	unsigned access;

	if (!desc || !count || !vmm_is_device(&desc->location))
		return rc;
	access = desc->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? ADDRESS_READ | ADDRESS_WRITE :
		 desc->flags == CU_MEM_ACCESS_FLAGS_PROT_READ	   ? ADDRESS_READ : 0;
	pthread_mutex_lock(&vmm_lock);
	if (is_mapped(ptr, size)) {
		int protection = (access & ADDRESS_READ ? PROT_READ : 0) | (access & ADDRESS_WRITE ? PROT_WRITE : 0);

		if (mprotect((void *)ptr, size, protection) == 0) {
			address_protect(ptr, size, access);
			rc = CUDA_SUCCESS;
		}
	}
	pthread_mutex_unlock(&vmm_lock);
	return rc;
}

SIM_EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
	CUdeviceptr at = (CUdeviceptr)addr;
	CUresult rc = CUDA_ERROR_INVALID_VALUE;

	pthread_mutex_lock(&vmm_lock);
	for (struct mapping *mapping = mappings; handle && mapping && rc != CUDA_SUCCESS; mapping = mapping->next)
		if (at - mapping->base < mapping->bytes) {
			mapping->memory->references++;
			*handle = (CUmemGenericAllocationHandle)(uintptr_t)mapping->memory;
			rc = CUDA_SUCCESS;
		}
	pthread_mutex_unlock(&vmm_lock);
	return rc;
}
