/* Virtual memory management: addresses, and putting memory behind them. */
#include "spans.h"
#include "vmm.h"

#include <stdlib.h>
#include <sys/mman.h>

struct mapping {
	struct span span; /* first */
	struct memory *memory;
	bool is_placed; /* the memory lies there: with the first access that is allowed, as on the device */
};

/* Both under vmm_lock. */
static struct spans mappings, reservations;

bool vmm_is_reserved(CUdeviceptr base, size_t bytes)
{
	const struct span *found;
	bool inside;

	pthread_mutex_lock(&vmm_lock);
	found = span_at(&reservations, base);
	inside = found && bytes <= found->base + found->bytes - base;
	pthread_mutex_unlock(&vmm_lock);
	return inside;
}

static bool is_power_of_two(size_t value)
{
	return !(value & (value - 1));
}

/* `addr` is a hint: where it is taken another address comes back, and no error. */
SIM_EXPORT CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr, unsigned long long flags)
{
	struct span *reservation;
	CUdeviceptr base;

	if (driver_check() != CUDA_SUCCESS)
		return driver_check();
	if (!ptr || !size || size % GRANULE || addr % GRANULE || flags || !is_power_of_two(alignment))
		return CUDA_ERROR_INVALID_VALUE;
	reservation = malloc(sizeof(*reservation));
	base = reservation ? address_reserve(size, alignment, alignment && addr % alignment ? 0 : addr) : 0;
	if (!base) {
		free(reservation);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*reservation = (struct span){ .base = base, .bytes = size };
	pthread_mutex_lock(&vmm_lock);
	span_add(&reservations, reservation);
	pthread_mutex_unlock(&vmm_lock);
	*ptr = base;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
	CUresult rc = CUDA_ERROR_INVALID_VALUE;
	struct span *found;

	pthread_mutex_lock(&vmm_lock);
	found = span_at(&reservations, ptr);
	if (found && found->base == ptr && found->bytes == size && !span_meets(&mappings, ptr, size)) {
		span_take(&reservations, found);
		free(found);
		munmap((void *)ptr, size);
		rc = CUDA_SUCCESS;
	}
	pthread_mutex_unlock(&vmm_lock);
	return rc;
}

static CUresult map(CUdeviceptr ptr, struct memory *memory)
{
	struct mapping *mapping = malloc(sizeof(*mapping));
	struct address_facts facts = { .kind = ADDRESS_MAPPED, .gpu = memory->gpu, .block = memory->block };

	if (!mapping)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*mapping = (struct mapping){ { .base = ptr, .bytes = memory->bytes }, memory, false };
	if (address_add(ptr, memory->bytes, facts) < 0) {
		free(mapping);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	span_add(&mappings, &mapping->span);
	memory->mappings++;
	return CUDA_SUCCESS;
}

/* Only records the mapping: without access until cuMemSetAccess, over a guard too. Only the whole memory of a handle can be
 * mapped, so a mapping shows its true size. */
SIM_EXPORT CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
			     unsigned long long flags)
{
	CUresult rc = CUDA_ERROR_INVALID_VALUE;
	struct memory *memory;

	if (!size || size % GRANULE || ptr % GRANULE || offset || flags || !vmm_is_reserved(ptr, size))
		return rc;
	pthread_mutex_lock(&vmm_lock);
	memory = vmm_memory(handle);
	if (memory && size != memory->bytes)
		rc = CUDA_ERROR_NOT_SUPPORTED;
	else if (memory && !span_meets(&mappings, ptr, size))
		rc = map(ptr, memory);
	pthread_mutex_unlock(&vmm_lock);
	return rc;
}

static void unmap(struct mapping *mapping)
{
	CUdeviceptr base = mapping->span.base;

	address_remove(base, ADDRESS_MAPPED, NULL);
	if (mapping->is_placed)
		mmap((void *)base, mapping->span.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	span_take(&mappings, &mapping->span);
	vmm_drop(mapping->memory, &mapping->memory->mappings);
	free(mapping);
}

/* Whole mappings, end to end, in one call. */
SIM_EXPORT CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
	CUresult rc = CUDA_ERROR_INVALID_VALUE;

	pthread_mutex_lock(&vmm_lock);
	if (size && span_covers(&mappings, ptr, size)) {
		struct mapping *at;

		while ((at = (struct mapping *)span_from(&mappings, ptr)) && at->span.base < ptr + size)
			unmap(at);
		rc = CUDA_SUCCESS;
	}
	pthread_mutex_unlock(&vmm_lock);
	return rc;
}

static unsigned access_of(CUmemAccess_flags flags)
{
	return flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? ADDRESS_READ | ADDRESS_WRITE :
	       flags == CU_MEM_ACCESS_FLAGS_PROT_READ	   ? ADDRESS_READ : 0;
}

/* The caller has seen that whole mappings make it up. */
static bool place(CUdeviceptr ptr, size_t size, unsigned access)
{
	int protection = (access & ADDRESS_READ ? PROT_READ : 0) | (access & ADDRESS_WRITE ? PROT_WRITE : 0);

	for (struct span *at = span_from(&mappings, ptr); at && at->base < ptr + size; at = span_next(&mappings, at)) {
		struct mapping *mapping = (struct mapping *)at;

		if (mapping->is_placed)
			continue;
		if (!block_map(mapping->memory->block, at->base, at->bytes, protection))
			return false;
		mapping->is_placed = true;
	}
	return mprotect((void *)ptr, size, protection) == 0;
}

/* Over a hole or a guard it fails, over mappings end to end it does not. */
SIM_EXPORT CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
	CUresult rc = CUDA_ERROR_INVALID_VALUE;
	unsigned access;

	if (!size || !desc || !count || !vmm_is_device(&desc->location))
		return rc;
	access = access_of(desc->flags);
	machine_wait_clear(driver.view.gpu[desc->location.id]);
	pthread_mutex_lock(&vmm_lock);
	if (span_covers(&mappings, ptr, size) && !guard_meets(ptr, size) && place(ptr, size, access)) {
		address_protect(ptr, size, access);
		rc = CUDA_SUCCESS;
	}
	pthread_mutex_unlock(&vmm_lock);
	return rc;
}

SIM_EXPORT CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr)
{
	struct address_facts facts;
	CUdeviceptr base;
	size_t bytes;

	if (!flags || !location || !vmm_is_device(location) || !address_range(ptr, &base, &bytes, &facts))
		return CUDA_ERROR_INVALID_VALUE;
	*flags = facts.access & ADDRESS_WRITE ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE :
		 facts.access & ADDRESS_READ  ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_NONE;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
	CUresult rc = CUDA_ERROR_INVALID_VALUE;
	struct mapping *mapping;

	pthread_mutex_lock(&vmm_lock);
	mapping = (struct mapping *)span_at(&mappings, (CUdeviceptr)addr);
	if (handle && mapping) {
		mapping->memory->handles++;
		*handle = mapping->memory->handle;
		rc = CUDA_SUCCESS;
	}
	pthread_mutex_unlock(&vmm_lock);
	return rc;
}
