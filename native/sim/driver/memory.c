/* Device memory: mappings that cost nothing until they are touched, counted on the machine. */
#include "driver.h"

#include <string.h>
#include <sys/mman.h>

enum { BLOCK = 2 << 20, PAGE = 4096 };

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

SIM_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
	CUcontext context;
	CUresult rc = allocating_context(&context);
	CUdeviceptr base;

	if (rc != CUDA_SUCCESS)
		return rc;
	if (!dptr || !bytesize)
		return CUDA_ERROR_INVALID_VALUE;
	if (bytesize > 1ull << 46)
		return CUDA_ERROR_OUT_OF_MEMORY;
	rc = memory_charge(context, rounded(bytesize));
	if (rc != CUDA_SUCCESS)
		return rc;
	base = address_reserve(rounded(bytesize), 0);
	if (base && mprotect((void *)base, rounded(bytesize), PROT_READ | PROT_WRITE) == 0 &&
	    address_add(base, rounded(bytesize), ADDRESS_READ | ADDRESS_WRITE, context->gpu) == 0) {
		*dptr = base;
		return CUDA_SUCCESS;
	}
	if (base)
		munmap((void *)base, rounded(bytesize));
	memory_release(context->gpu, rounded(bytesize));
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* It lies on the device from the beginning, and does not move. */
SIM_EXPORT CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags)
{
	if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)
		return CUDA_ERROR_INVALID_VALUE;
	return cuMemAlloc_v2(dptr, bytesize);
}

SIM_EXPORT CUresult cuMemFree_v2(CUdeviceptr dptr)
{
	CUcontext context;
	CUresult rc = allocating_context(&context);
	unsigned gpu;
	size_t bytes;

	if (rc != CUDA_SUCCESS || !dptr)
		return rc;
	(void)queue_wait(context, UINT64_MAX); /* what runs may still use it */
	bytes = address_remove(dptr, &gpu);
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	munmap((void *)dptr, bytes);
	memory_release(gpu, bytes);
	return CUDA_SUCCESS;
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
	if (!address_range(dptr, &base, &bytes))
		return CUDA_ERROR_NOT_FOUND;
	if (pbase)
		*pbase = base;
	if (psize)
		*psize = bytes;
	return CUDA_SUCCESS;
}
