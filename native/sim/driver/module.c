/* Modules: of a PTX text only the names of its entries count, which are looked up in kernels.c. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

enum { FUNCTIONS = 64 };

struct CUfunc_st {
	const struct kernel *kernel;
};

struct CUmod_st {
	unsigned count;
	struct CUfunc_st functions[FUNCTIONS];
};

/* The names after ".visible .entry". */
static void read_entries(CUmodule module, const char *text)
{
	while (module->count < FUNCTIONS && (text = strstr(text, ".entry"))) {
		const struct kernel *kernel;
		size_t length;

		text += strlen(".entry");
		text += strspn(text, " \t\r\n");
		length = strcspn(text, " \t\r\n(");
		kernel = kernel_find(text, length);
		if (kernel)
			module->functions[module->count++].kernel = kernel;
	}
}

SIM_EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	CUcontext context;
	CUresult rc = context_current(&context);

	if (rc != CUDA_SUCCESS)
		return rc;
	if (!module || !image)
		return CUDA_ERROR_INVALID_VALUE;
	if (memcmp(image, "\x7f" "ELF", 4) == 0 || !strstr(image, ".version"))
		return CUDA_ERROR_INVALID_IMAGE; /* only text can be read here */
	*module = calloc(1, sizeof(**module));
	if (!*module)
		return CUDA_ERROR_OUT_OF_MEMORY;
	read_entries(*module, image);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions, CUjit_option *options,
				       void **optionValues)
{
	(void)numOptions, (void)options, (void)optionValues;
	return cuModuleLoadData(module, image);
}

SIM_EXPORT CUresult cuModuleUnload(CUmodule hmod)
{
	if (!hmod)
		return CUDA_ERROR_INVALID_VALUE;
	free(hmod);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuFuncGetName(const char **name, CUfunction hfunc)
{
	if (!name || !hfunc)
		return CUDA_ERROR_INVALID_VALUE;
	*name = hfunc->kernel->name;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod, const char *name)
{
	if (!hfunc || !hmod || !name)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < hmod->count; i++)
		if (strcmp(hmod->functions[i].kernel->name, name) == 0) {
			*hfunc = &hmod->functions[i];
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_NOT_FOUND;
}

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
