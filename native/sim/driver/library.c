/* Libraries: modules that need no context, and kernels that are functions in any. */
#include "driver.h"

SIM_EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jitOptions, void **jitOptionsValues,
				      unsigned int numJitOptions, CUlibraryOption *libraryOptions, void **libraryOptionValues,
				      unsigned int numLibraryOptions)
{
	(void)jitOptions, (void)jitOptionsValues, (void)numJitOptions;
	(void)libraryOptions, (void)libraryOptionValues, (void)numLibraryOptions;
	return driver_check() == CUDA_SUCCESS ? module_read((CUmodule *)library, code) : driver_check();
}

SIM_EXPORT CUresult cuLibraryUnload(CUlibrary library)
{
	return cuModuleUnload((CUmodule)library);
}

SIM_EXPORT CUresult cuLibraryGetKernel(CUkernel *pKernel, CUlibrary library, const char *name)
{
	return cuModuleGetFunction((CUfunction *)pKernel, (CUmodule)library, name);
}

SIM_EXPORT CUresult cuKernelGetFunction(CUfunction *pFunc, CUkernel kernel)
{
	CUcontext context;
	CUresult rc = context_current(&context);

	if (rc != CUDA_SUCCESS)
		return rc;
	if (!pFunc || !kernel)
		return CUDA_ERROR_INVALID_VALUE;
	*pFunc = (CUfunction)kernel;
	return CUDA_SUCCESS;
}

/* All parameters of the kernels here are 64-bit, one behind the other. */
SIM_EXPORT CUresult cuKernelGetParamInfo(CUkernel kernel, size_t paramIndex, size_t *paramOffset, size_t *paramSize)
{
	if (!kernel || !paramOffset || paramIndex >= ((CUfunction)kernel)->kernel->parameters)
		return CUDA_ERROR_INVALID_VALUE;
	*paramOffset = paramIndex * sizeof(uint64_t);
	if (paramSize)
		*paramSize = sizeof(uint64_t);
	return CUDA_SUCCESS;
}
