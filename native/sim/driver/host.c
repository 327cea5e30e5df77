/* Pinned host memory: the device may use it at the same address. */
#include "driver.h"

#include <sys/mman.h>

SIM_EXPORT CUresult cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags)
{
	CUcontext context;
	CUresult rc = context_current(&context);
	struct address_facts facts = { .kind = ADDRESS_HOST, .access = ADDRESS_READ | ADDRESS_WRITE };
	void *got;

	(void)Flags;
	if (rc != CUDA_SUCCESS)
		return rc;
	if (!pp || !bytesize)
		return CUDA_ERROR_INVALID_VALUE;
	got = mmap(NULL, bytesize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (got == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	facts.gpu = context->gpu;
	facts.context = context;
	if (address_add((CUdeviceptr)got, bytesize, facts) < 0) {
		munmap(got, bytesize);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*pp = got;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemAllocHost_v2(void **pp, size_t bytesize)
{
	return cuMemHostAlloc(pp, bytesize, 0);
}

SIM_EXPORT CUresult cuMemFreeHost(void *p)
{
	size_t bytes = address_remove((CUdeviceptr)p, ADDRESS_HOST, NULL);

	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	munmap(p, bytes);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *pdptr, void *p, unsigned int Flags)
{
	CUdeviceptr base;
	size_t bytes;

	if (!pdptr || Flags || !address_range((CUdeviceptr)p, &base, &bytes, NULL))
		return CUDA_ERROR_INVALID_VALUE;
	*pdptr = (CUdeviceptr)p;
	return CUDA_SUCCESS;
}
