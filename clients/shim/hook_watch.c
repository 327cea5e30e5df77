/* The hooks that only look at the result: one body for each, made of hooks.def. */
#include "shim.h"

/* From here on errors are of what ran; below are those of the call (mpsd knows them all by number). */
static inline CUresult seen(CUresult result)
{
	if (__builtin_expect((int)result >= 200, 0))
		report_result(result);
	return result;
}

/* is_all: the GPU has done all that this context gave it. */
static inline CUresult settled(CUresult result, bool is_all)
{
	if (result == CUDA_SUCCESS && is_all)
		functions_settled();
	if (result == CUDA_SUCCESS)
		placement_settle(is_all);
	return seen(result);
}

#define OWN(name, base, since, stream, parameters, arguments)
#define WATCH(name, base, since, stream, parameters, arguments)    \
	SHIM_EXPORT CUresult name parameters                        \
	{                                                           \
		if (!real_load() || !real.name)                     \
			return (CUresult)ERROR_NOT_INITIALIZED;     \
		return gate_is_open() ? seen(real.name arguments) : real.name arguments; \
	}
#define SYNC(name, base, since, stream, parameters, arguments)     \
	SHIM_EXPORT CUresult name parameters                        \
	{                                                           \
		if (!real_load() || !real.name)                     \
			return (CUresult)ERROR_NOT_INITIALIZED;     \
		return gate_is_open() ? settled(real.name arguments, !strcmp(#name, "cuCtxSynchronize")) :      \
					real.name arguments;                \
	}
#include "hooks.def"
