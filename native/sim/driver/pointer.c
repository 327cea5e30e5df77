/* Attributes of an address. */
#include "driver.h"

static int ordinal_of(unsigned gpu)
{
	for (unsigned i = 0; i < driver.view.count; i++)
		if (driver.view.gpu[i] == gpu)
			return (int)i;
	return CU_DEVICE_INVALID;
}

static CUmemorytype type_of(const struct address_facts *facts)
{
	return facts->kind == ADDRESS_HOST ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
}

/* For an address that CUDA does not know, some attributes have a value without a kind: `base` is 0 then. */
static CUresult tell(void *data, CUpointer_attribute attribute, CUdeviceptr ptr, CUdeviceptr base, size_t bytes,
		     const struct address_facts *facts)
{
	bool is_on_host = facts->kind == ADDRESS_HOST || facts->kind == ADDRESS_MANAGED;

	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		*(CUcontext *)data = facts->context;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		*(CUmemorytype *)data = facts->kind ? type_of(facts) : (CUmemorytype)0;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		*(CUdeviceptr *)data = facts->kind ? ptr : 0;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		*(void **)data = is_on_host ? (void *)ptr : NULL;
		return is_on_host || !facts->kind ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		*(unsigned long long *)data = base;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		*(unsigned *)data = facts->kind == ADDRESS_MANAGED;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		*(int *)data = facts->kind ? ordinal_of(facts->gpu) : CU_DEVICE_INVALID;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		*(unsigned *)data = facts->kind == ADDRESS_DEVICE;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
		*(CUdeviceptr *)data = base;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
		*(size_t *)data = bytes;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MAPPED:
		*(unsigned *)data = facts->kind != 0;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		*(unsigned long long *)data = facts->kind == ADDRESS_MAPPED ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		*(CUmemoryPool *)data = facts->kind == ADDRESS_POOL ? pool_of(ptr) : NULL;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

SIM_EXPORT CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
	struct address_facts facts;
	CUdeviceptr base;
	size_t bytes;

	if (driver_check() != CUDA_SUCCESS)
		return driver_check();
	if (!data || !address_range(ptr, &base, &bytes, &facts))
		return CUDA_ERROR_INVALID_VALUE;
	return tell(data, attribute, ptr, base, bytes, &facts);
}

/* For an address that CUDA does not know, each attribute is zero, and the call succeeds. */
SIM_EXPORT CUresult cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute *attributes, void **data, CUdeviceptr ptr)
{
	struct address_facts facts = { 0 };
	CUdeviceptr base = 0;
	size_t bytes = 0;

	if (driver_check() != CUDA_SUCCESS)
		return driver_check();
	if (!numAttributes || !attributes || !data)
		return CUDA_ERROR_INVALID_VALUE;
	(void)address_range(ptr, &base, &bytes, &facts);
	for (unsigned i = 0; i < numAttributes; i++)
		if (!data[i] || (tell(data[i], attributes[i], ptr, base, bytes, &facts) != CUDA_SUCCESS &&
				 attributes[i] != CU_POINTER_ATTRIBUTE_HOST_POINTER))
			return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}
