/* Device memory: mappings that cost nothing until they are touched, counted on the machine. */
#include "driver.h"

#include <string.h>
#include <sys/mman.h>

enum { BLOCK = 2 << 20, PAGE = 4096, PITCH = 512 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects `counted` */
static uint64_t counted[MACHINE_GPUS];                   /* what the pinned memory limit is about */

/* Against the limit alone. */
CUresult memory_count(CUcontext context, uint64_t bytes)
{
	uint64_t limit = driver.mps ? mps_limit_bytes(&context->link, context->gpu) : 0;
	CUresult rc = CUDA_SUCCESS;

	pthread_mutex_lock(&lock);
	if (limit && (counted[context->gpu] > limit || bytes > limit - counted[context->gpu]))
		rc = CUDA_ERROR_OUT_OF_MEMORY;
	else
		counted[context->gpu] += bytes;
	pthread_mutex_unlock(&lock);
	return rc;
}

void memory_uncount(unsigned gpu, uint64_t bytes)
{
	pthread_mutex_lock(&lock);
	counted[gpu] -= bytes < counted[gpu] ? bytes : counted[gpu];
	pthread_mutex_unlock(&lock);
}

/* Against the limit and the machine. */
CUresult memory_charge(CUcontext context, uint64_t bytes)
{
	CUresult rc = memory_count(context, bytes);

	if (rc != CUDA_SUCCESS)
		return rc;
	if (machine_charge(context->gpu, bytes))
		return CUDA_SUCCESS;
	memory_uncount(context->gpu, bytes);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

void memory_release(unsigned gpu, uint64_t bytes)
{
	memory_uncount(gpu, bytes);
	machine_release(gpu, bytes);
}

static uint64_t rounded(size_t bytes)
{
	uint64_t unit = bytes < BLOCK / 2 ? PAGE : BLOCK;

	return ((uint64_t)bytes + unit - 1) / unit * unit;
}

/* A lost connection does not keep memory from being had: driver 580 gives it from its own pool. */
static CUresult allocating_context(CUcontext *context)
{
	CUresult rc = context_current(context);

	return rc == CUDA_ERROR_MPS_RPC_FAILURE ? CUDA_SUCCESS : rc;
}

CUresult memory_new(CUcontext context, size_t bytes, enum address_kind kind, CUdeviceptr *address)
{
	struct address_facts facts = { .kind = kind, .access = ADDRESS_READ | ADDRESS_WRITE, .gpu = context->gpu, .context = context };
	CUdeviceptr base;
	CUresult rc;

	if (bytes > 1ull << 46)
		return CUDA_ERROR_OUT_OF_MEMORY;
	rc = memory_charge(context, rounded(bytes));
	if (rc != CUDA_SUCCESS)
		return rc;
	base = address_reserve(rounded(bytes), 0, 0);
	if (base && mprotect((void *)base, rounded(bytes), PROT_READ | PROT_WRITE) == 0 &&
	    address_add(base, rounded(bytes), facts) == 0) {
		*address = base;
		return CUDA_SUCCESS;
	}
	if (base)
		munmap((void *)base, rounded(bytes));
	memory_release(context->gpu, rounded(bytes));
	return CUDA_ERROR_OUT_OF_MEMORY;
}

bool memory_free(CUdeviceptr base, enum address_kind kind)
{
	struct address_facts facts;
	size_t bytes = address_remove(base, kind, &facts);

	if (!bytes)
		return false;
	munmap((void *)base, bytes);
	if (facts.block) { /* others may have it yet: the machine counts it apart from us */
		memory_uncount(facts.gpu, bytes);
		block_drop(facts.block);
	} else {
		memory_release(facts.gpu, bytes);
	}
	return true;
}

static CUresult allocate(CUdeviceptr *dptr, size_t bytes, enum address_kind kind)
{
	CUcontext context;
	CUresult rc = allocating_context(&context);

	if (rc != CUDA_SUCCESS)
		return rc;
	if (!dptr || !bytes)
		return CUDA_ERROR_INVALID_VALUE;
	return memory_new(context, bytes, kind, dptr);
}

SIM_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
	return allocate(dptr, bytesize, ADDRESS_DEVICE);
}

/* It lies on the device from the beginning, and does not move. */
SIM_EXPORT CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags)
{
	if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)
		return CUDA_ERROR_INVALID_VALUE;
	return allocate(dptr, bytesize, ADDRESS_MANAGED);
}

SIM_EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
				       unsigned int ElementSizeBytes)
{
	size_t pitch = (WidthInBytes + PITCH - 1) / PITCH * PITCH;
	CUresult rc;

	if (!pPitch || !WidthInBytes || !Height || pitch < WidthInBytes || pitch > SIZE_MAX / Height ||
	    (ElementSizeBytes != 4 && ElementSizeBytes != 8 && ElementSizeBytes != 16))
		return CUDA_ERROR_INVALID_VALUE;
	rc = allocate(dptr, pitch * Height, ADDRESS_DEVICE);
	if (rc == CUDA_SUCCESS)
		*pPitch = pitch;
	return rc;
}

/* Not for what cuMemMap put there. */
SIM_EXPORT CUresult cuMemFree_v2(CUdeviceptr dptr)
{
	CUcontext context;
	CUresult rc = allocating_context(&context);

	if (rc != CUDA_SUCCESS || !dptr)
		return rc;
	(void)queue_wait(context, UINT64_MAX); /* what runs may still use it */
	if (memory_free(dptr, ADDRESS_DEVICE) || memory_free(dptr, ADDRESS_MANAGED) || pool_free(dptr))
		return CUDA_SUCCESS;
	return CUDA_ERROR_INVALID_VALUE;
}

/* A limit shows in what is free, not in the total. */
SIM_EXPORT CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
	CUcontext context;
	CUresult rc = context_current(&context);
	uint64_t used, limit;

	if (rc != CUDA_SUCCESS)
		return rc;
	if (!free || !total)
		return CUDA_ERROR_INVALID_VALUE;
	machine_lock();
	machine_reap();
	used = machine_used_bytes(context->gpu);
	machine_unlock();
	rc = cuDeviceTotalMem_v2(total, context->device);
	*free = used < *total ? *total - used : 0;
	limit = driver.mps ? mps_limit_bytes(&context->link, context->gpu) : 0;
	pthread_mutex_lock(&lock);
	used = counted[context->gpu];
	pthread_mutex_unlock(&lock);
	if (limit && (used > limit || *free > limit - used))
		*free = used > limit ? 0 : limit - used;
	return rc;
}

SIM_EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr)
{
	CUcontext context;
	CUresult rc = context_current(&context);
	CUdeviceptr base;
	size_t bytes;

	if (rc != CUDA_SUCCESS)
		return rc;
	if (!address_range(dptr, &base, &bytes, NULL))
		return CUDA_ERROR_NOT_FOUND;
	if (pbase)
		*pbase = base;
	if (psize)
		*psize = bytes;
	return CUDA_SUCCESS;
}
