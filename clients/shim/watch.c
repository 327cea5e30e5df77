/* The hooks that only look at the result: one body for each, made of hooks.def. */
#include "shim.h"

/* From here on errors are of what ran; below are those of the call (mpsd knows them all by number). */
static inline CUresult seen(CUresult result)
{
	if (__builtin_expect((int)result >= 200, 0))
		report_result(result);
	return result;
}

static inline CUresult settled(CUresult result)
{
	if (result == CUDA_SUCCESS)
		placement_settle();
	return seen(result);
}

#define OWN(name, base, since, stream, parameters, arguments)
#define WATCH(name, base, since, stream, parameters, arguments)    \
	SHIM_EXPORT CUresult name parameters;                       \
	SHIM_EXPORT CUresult name parameters                        \
	{                                                           \
		if (!real_load() || !real.name)                     \
			return (CUresult)ERROR_NOT_INITIALIZED;     \
		return gate_is_open() ? seen(real.name arguments) : real.name arguments; \
	}
#define SYNC(name, base, since, stream, parameters, arguments)     \
	SHIM_EXPORT CUresult name parameters;                       \
	SHIM_EXPORT CUresult name parameters                        \
	{                                                           \
		if (!real_load() || !real.name)                     \
			return (CUresult)ERROR_NOT_INITIALIZED;     \
		return gate_is_open() ? settled(real.name arguments) : real.name arguments; \
	}
#include "hooks.def"
