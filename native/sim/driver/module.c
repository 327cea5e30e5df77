/* Modules: only the names of the entries of a PTX text count; kernels.c finds the kernel by that name. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

enum { FUNCTIONS = 64 };

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

CUresult module_read(CUmodule *module, const void *image)
{
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

SIM_EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	CUcontext context;
	CUresult rc = context_current(&context);

	return rc == CUDA_SUCCESS ? module_read(module, image) : rc;
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
