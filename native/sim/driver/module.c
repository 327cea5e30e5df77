/* Modules: only the names of the entries of a PTX text or a cubin count; kernels.c finds the kernel by that name. */
#include "driver.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>

enum { FUNCTIONS = 64 };

struct CUmod_st {
	unsigned count;
	struct CUfunc_st functions[FUNCTIONS];
};

static void add_kernel(CUmodule module, const char *name, size_t length)
{
	const struct kernel *kernel = module->count < FUNCTIONS ? kernel_find(name, length) : NULL;

	if (kernel)
		module->functions[module->count++].kernel = kernel;
}

/* The names after ".visible .entry". */
static void read_entries(CUmodule module, const char *text)
{
	while ((text = strstr(text, ".entry"))) {
		size_t length;

		text += strlen(".entry");
		text += strspn(text, " \t\r\n");
		length = strcspn(text, " \t\r\n(");
		add_kernel(module, text, length);
	}
}

/* A cubin is an ELF file with a section ".text.NAME" for each kernel. */
static void read_sections(CUmodule module, const char *image)
{
	const Elf64_Ehdr *head = (const Elf64_Ehdr *)image;
	const Elf64_Shdr *sections = (const Elf64_Shdr *)(image + head->e_shoff);
	const char *names = image + sections[head->e_shstrndx].sh_offset;

	for (unsigned i = 0; i < head->e_shnum; i++) {
		const char *name = names + sections[i].sh_name;

		if (strncmp(name, ".text.", strlen(".text.")) == 0)
			add_kernel(module, name + strlen(".text."), strlen(name) - strlen(".text."));
	}
}

CUresult module_read(CUmodule *module, const void *image)
{
	bool is_cubin;

	if (!module || !image)
		return CUDA_ERROR_INVALID_VALUE;
	is_cubin = memcmp(image, ELFMAG, SELFMAG) == 0;
	if (is_cubin ? ((const Elf64_Ehdr *)image)->e_machine != EM_CUDA : !strstr(image, ".version"))
		return CUDA_ERROR_INVALID_IMAGE;
	*module = calloc(1, sizeof(**module));
	if (!*module)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (is_cubin)
		read_sections(*module, image);
	else
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
