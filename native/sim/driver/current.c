/* Which context is current to a thread, and what a program may do with contexts. */
#include "driver.h"

enum { STACK = 64 };

static _Thread_local CUcontext stack[STACK];
static _Thread_local unsigned depth;

CUresult context_current(CUcontext *context)
{
	if (!driver.ready)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!depth || !stack[depth - 1])
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!context_is_known(stack[depth - 1]))
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	*context = stack[depth - 1];
	return (CUresult)(*context)->error;
}

SIM_EXPORT CUresult cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags, CUdevice dev)
{
	CUresult rc;

	(void)flags;
	if (!driver.ready)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!pctx || ctxCreateParams)
		return CUDA_ERROR_INVALID_VALUE;
	if (dev < 0 || (unsigned)dev >= driver.view.count)
		return CUDA_ERROR_INVALID_DEVICE;
	rc = context_new(dev, false, pctx);
	return rc == CUDA_SUCCESS ? cuCtxPushCurrent(*pctx) : rc;
}

SIM_EXPORT CUresult cuCtxDestroy_v2(CUcontext ctx)
{
	if (!context_is_known(ctx) || ctx->primary)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (depth && stack[depth - 1] == ctx)
		depth--;
	context_free(ctx);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
	if (depth == STACK || (ctx && !context_is_known(ctx)))
		return CUDA_ERROR_INVALID_CONTEXT;
	stack[depth++] = ctx;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *pctx)
{
	if (!depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	depth--;
	if (pctx)
		*pctx = stack[depth];
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxSetCurrent(CUcontext ctx)
{
	if (!driver.ready)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (ctx && !context_is_known(ctx))
		return CUDA_ERROR_INVALID_CONTEXT;
	depth = depth ? depth : 1;
	stack[depth - 1] = ctx;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxGetCurrent(CUcontext *pctx)
{
	if (!driver.ready)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!pctx)
		return CUDA_ERROR_INVALID_VALUE;
	*pctx = depth ? stack[depth - 1] : NULL;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
	CUcontext context = NULL;
	CUresult rc = context_current(&context);

	if (!context)
		return rc;
	*device = context->device;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxSynchronize(void)
{
	CUcontext context;
	CUresult rc = context_current(&context);

	return rc == CUDA_SUCCESS ? queue_wait(context, UINT64_MAX) : rc;
}
