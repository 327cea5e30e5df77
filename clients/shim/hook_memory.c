/* Memory that may be placed by the shim, and what a program does with it afterwards. */
#include "shim.h"

enum { PITCH_BYTES = 512 }; /* of rows, as the driver has it on all GPUs with MPS; more would do as well */

SHIM_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
	CUresult result = CUDA_ERROR_NOT_SUPPORTED;

	if (!real_load() || !real.cuMemAlloc_v2)
		return (CUresult)ERROR_NOT_INITIALIZED;
	if (gate_is_open() && address && placement_wants(bytes)) {
		gate_depth++;
		result = placement_alloc(bytes, address);
		gate_depth--;
	}
	if (result == CUDA_ERROR_NOT_SUPPORTED)
		result = real.cuMemAlloc_v2(address, bytes);
	return result;
}

SHIM_EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned element)
{
	CUresult result = CUDA_ERROR_NOT_SUPPORTED;
	size_t row;

	if (!real_load() || !real.cuMemAllocPitch_v2)
		return (CUresult)ERROR_NOT_INITIALIZED;
	row = (width + PITCH_BYTES - 1) / PITCH_BYTES * PITCH_BYTES;
	if (gate_is_open() && address && pitch && row >= width && height && row <= SIZE_MAX / height &&
	    (element == 4 || element == 8 || element == 16) && placement_wants(row * height)) {
		gate_depth++;
		result = placement_alloc(row * height, address);
		gate_depth--;
		if (result == CUDA_SUCCESS)
			*pitch = row;
	}
	if (result == CUDA_ERROR_NOT_SUPPORTED)
		result = real.cuMemAllocPitch_v2(address, pitch, width, height, element);
	return result;
}

/* The GPU is waited for, as cuMemFree does. */
static CUresult free_placed(CUdeviceptr address)
{
	CUresult result = CUDA_SUCCESS;

	gate_depth++;
	if (real.cuCtxSynchronize)
		result = real.cuCtxSynchronize();
	if ((int)result < 200) /* in a dead context it stays, as all its memory does */
		result = placement_free(address);
	gate_depth--;
	report_result(result);
	return result;
}

SHIM_EXPORT CUresult cuMemFree_v2(CUdeviceptr address)
{
	if (!real_load() || !real.cuMemFree_v2)
		return (CUresult)ERROR_NOT_INITIALIZED;
	if (gate_is_open() && placement_has(address))
		return free_placed(address);
	return real.cuMemFree_v2(address);
}

#define FREE_ASYNC(name)                                                     \
	SHIM_EXPORT CUresult name(CUdeviceptr address, CUstream stream);      \
	SHIM_EXPORT CUresult name(CUdeviceptr address, CUstream stream)       \
	{                                                                     \
		if (!real_load() || !real.name)                               \
			return (CUresult)ERROR_NOT_INITIALIZED;               \
		if (gate_is_open() && placement_has(address))                 \
			return free_placed(address);                          \
		return real.name(address, stream);                            \
	}
FREE_ASYNC(cuMemFreeAsync)
FREE_ASYNC(cuMemFreeAsync_ptsz)

SHIM_EXPORT CUresult cuIpcGetMemHandle(void *handle, CUdeviceptr address)
{
	static bool is_told;

	if (!real_load() || !real.cuIpcGetMemHandle)
		return (CUresult)ERROR_NOT_INITIALIZED;
	if (gate_is_open() && placement_has(address) && !__atomic_exchange_n(&is_told, true, __ATOMIC_RELAXED))
		shim_log("cuIpcGetMemHandle: memory that MPSD_ARENA or MPSD_SHIELD has placed cannot be given to other processes "
			 "this way; MPSD_ARENA_MIN and MPSD_ARENA_MAX say which sizes are placed");
	return real.cuIpcGetMemHandle(handle, address);
}

static CUresult context_gone(CUresult result, CUcontext context)
{
	gate_depth++;
	if (result == CUDA_SUCCESS)
		placement_context_gone(context);
	gate_depth--;
	return result;
}

SHIM_EXPORT CUresult cuCtxDestroy_v2(CUcontext context)
{
	if (!real_load() || !real.cuCtxDestroy_v2)
		return (CUresult)ERROR_NOT_INITIALIZED;
	if (!gate_is_open())
		return real.cuCtxDestroy_v2(context);
	return context_gone(real.cuCtxDestroy_v2(context), context);
}

/* The handle of the primary context, while it exists. */
static CUcontext primary(CUdevice device)
{
	CUcontext context = NULL;
	unsigned flags;
	int is_active = 0;

	if (real.cuDevicePrimaryCtxGetState && real.cuDevicePrimaryCtxRetain &&
	    real.cuDevicePrimaryCtxGetState(device, &flags, &is_active) == CUDA_SUCCESS && is_active &&
	    real.cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS)
		real.cuDevicePrimaryCtxRelease_v2(device);
	return context;
}

/* Others may still retain it: then its memory stays. */
static CUresult primary_let_go(CUresult result, CUdevice device, CUcontext before)
{
	unsigned flags;
	int is_active = 1;

	if (result == CUDA_SUCCESS && before && real.cuDevicePrimaryCtxGetState(device, &flags, &is_active) == CUDA_SUCCESS && !is_active)
		placement_context_gone(before);
	return result;
}

#define LET_GO(name)                                                             \
	SHIM_EXPORT CUresult name(CUdevice device);                               \
	SHIM_EXPORT CUresult name(CUdevice device)                                \
	{                                                                         \
		CUcontext before;                                                 \
		CUresult result;                                                  \
									          \
		if (!real_load() || !real.name)                                   \
			return (CUresult)ERROR_NOT_INITIALIZED;                   \
		if (!gate_is_open() || !placement_has_any())                      \
			return real.name(device);                                 \
		gate_depth++;                                                     \
		before = primary(device);                                         \
		result = primary_let_go(real.name(device), device, before);       \
		gate_depth--;                                                     \
		return result;                                                    \
	}
LET_GO(cuDevicePrimaryCtxRelease_v2)
LET_GO(cuDevicePrimaryCtxReset_v2)
