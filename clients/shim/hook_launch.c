/* Launches, and the loading of what is launched: so that a report of an error can name the kernel. */
#include "shim.h"

static CUresult launched(CUresult result, CUfunction function)
{
	if (result == CUDA_SUCCESS)
		functions_launched(function);
	else
		report_result(result);
	return result;
}

#define LAUNCH(name, parameters, arguments)                             \
	SHIM_EXPORT CUresult name parameters                             \
	{                                                                \
		if (!real_load() || !real.name)                          \
			return (CUresult)ERROR_NOT_INITIALIZED;          \
		return gate_is_open() ? launched(real.name arguments, function) : real.name arguments; \
	}
#define EX_PARAMETERS (const void *config, CUfunction function, void **values, void **extra)
#define EX_ARGUMENTS (config, function, values, extra)

LAUNCH(cuLaunchKernel, LAUNCH_PARAMETERS, LAUNCH_ARGUMENTS)
LAUNCH(cuLaunchKernel_ptsz, LAUNCH_PARAMETERS, LAUNCH_ARGUMENTS)
LAUNCH(cuLaunchKernelEx, EX_PARAMETERS, EX_ARGUMENTS)
LAUNCH(cuLaunchKernelEx_ptsz, EX_PARAMETERS, EX_ARGUMENTS)
LAUNCH(cuLaunchCooperativeKernel, COOPERATIVE_PARAMETERS, COOPERATIVE_ARGUMENTS)
LAUNCH(cuLaunchCooperativeKernel_ptsz, COOPERATIVE_PARAMETERS, COOPERATIVE_ARGUMENTS)

SHIM_EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
	CUresult result;

	if (!real_load() || !real.cuModuleGetFunction)
		return (CUresult)ERROR_NOT_INITIALIZED;
	result = real.cuModuleGetFunction(function, module, name);
	if (result == CUDA_SUCCESS && gate_is_open())
		functions_learn(*function, name);
	return result;
}

SHIM_EXPORT CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
	CUresult result;

	if (!real_load() || !real.cuLibraryGetKernel)
		return (CUresult)ERROR_NOT_INITIALIZED;
	result = real.cuLibraryGetKernel(kernel, library, name);
	if (result == CUDA_SUCCESS && gate_is_open())
		functions_learn(*kernel, name);
	return result;
}

SHIM_EXPORT CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
	CUresult result;

	if (!real_load() || !real.cuKernelGetFunction)
		return (CUresult)ERROR_NOT_INITIALIZED;
	result = real.cuKernelGetFunction(function, kernel);
	if (result == CUDA_SUCCESS && gate_is_open())
		functions_same(*function, kernel);
	return result;
}
