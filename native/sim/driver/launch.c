/* Telling the device to run something. */
#include "driver.h"

#include <string.h>

static void run_kernel(CUcontext context, struct work *work)
{
	page_started(context, work);
	if (machine_self()->faulted & 1u << context->gpu && !driver.mps)
		context_fail_all(driver.doomed = CUDA_ERROR_LAUNCH_FAILED); /* `mpsd-sim xid` */
	else
		work->launch.kernel->run(context, work);
	page_ended(context, work);
}

bool work_is_kernel(const struct work *work)
{
	return work->run == run_kernel;
}

SIM_EXPORT CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
				   unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
				   unsigned int sharedMemBytes, CUstream hStream, void **kernelParams, void **extra)
{
	struct work work = { .run = run_kernel };
	unsigned long grid = (unsigned long)gridDimX * gridDimY * gridDimZ;
	unsigned long block = (unsigned long)blockDimX * blockDimY * blockDimZ;

	if (!f)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!grid || !block || block > 1024 || sharedMemBytes > 232448 || extra || (f->kernel->parameters && !kernelParams))
		return CUDA_ERROR_INVALID_VALUE;
	work.launch.kernel = f->kernel;
	work.launch.grid = (unsigned)grid;
	work.launch.block = (unsigned)block;
	for (unsigned i = 0; i < f->kernel->parameters; i++)
		memcpy(&work.launch.values[i], kernelParams[i], sizeof(uint64_t));
	return queue_do(&work, hStream, false);
}
SIM_PER_THREAD(cuLaunchKernel, _ptsz);

/* Launch attributes are ignored. */
SIM_EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra)
{
	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	return cuLaunchKernel(f, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX, config->blockDimY,
			      config->blockDimZ, config->sharedMemBytes, config->hStream, kernelParams, extra);
}
SIM_PER_THREAD(cuLaunchKernelEx, _ptsz);

SIM_EXPORT CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
					      unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
					      unsigned int sharedMemBytes, CUstream hStream, void **kernelParams)
{
	return cuLaunchKernel(f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes, hStream,
			      kernelParams, NULL);
}
SIM_PER_THREAD(cuLaunchCooperativeKernel, _ptsz);

static void run_call(CUcontext context, struct work *work)
{
	(void)context;
	work->call.function(work->call.data);
}

SIM_EXPORT CUresult cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void *userData)
{
	struct work work = { .run = run_call, .call = { fn, userData } };

	return fn ? queue_do(&work, hStream, false) : CUDA_ERROR_INVALID_VALUE;
}
SIM_PER_THREAD(cuLaunchHostFunc, _ptsz);
