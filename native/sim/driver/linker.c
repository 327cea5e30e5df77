/* The linker: what it makes of a PTX text is that text, which modules can read. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

struct CUlinkState_st {
	char *text;
	size_t size; /* with the NUL */
};

SIM_EXPORT CUresult cuLinkCreate_v2(unsigned int numOptions, CUjit_option *options, void **optionValues, CUlinkState *stateOut)
{
	(void)numOptions, (void)options, (void)optionValues;
	if (driver_check() != CUDA_SUCCESS)
		return driver_check();
	if (!stateOut)
		return CUDA_ERROR_INVALID_VALUE;
	*stateOut = calloc(1, sizeof(**stateOut));
	return *stateOut ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_EXPORT CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void *data, size_t size, const char *name,
				     unsigned int numOptions, CUjit_option *options, void **optionValues)
{
	(void)name, (void)numOptions, (void)options, (void)optionValues;
	if (!state || !data || !size || type != CU_JIT_INPUT_PTX || state->text)
		return CUDA_ERROR_INVALID_VALUE;
	state->text = malloc(size + 1);
	if (!state->text)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(state->text, data, size);
	state->text[size] = '\0';
	state->size = size + 1;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuLinkComplete(CUlinkState state, void **cubinOut, size_t *sizeOut)
{
	if (!state || !state->text || !cubinOut)
		return CUDA_ERROR_INVALID_VALUE;
	*cubinOut = state->text;
	if (sizeOut)
		*sizeOut = state->size;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuLinkDestroy(CUlinkState state)
{
	if (!state)
		return CUDA_ERROR_INVALID_HANDLE;
	free(state->text);
	free(state);
	return CUDA_SUCCESS;
}
