/* Streams: all of a context's work is in order here, so a stream is only a place in its queue. */
#include "driver.h"

#include <stdlib.h>

enum { LEAST_PRIORITY = 0, GREATEST_PRIORITY = -5 };

CUstream stream_named(CUstream stream)
{
	return stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD ? NULL : stream;
}

SIM_EXPORT CUresult cuStreamCreate(CUstream *phStream, unsigned int Flags)
{
	CUcontext context;
	CUresult rc = context_current(&context);

	if (rc != CUDA_SUCCESS)
		return rc;
	if (!phStream || Flags > CU_STREAM_NON_BLOCKING)
		return CUDA_ERROR_INVALID_VALUE;
	*phStream = calloc(1, sizeof(**phStream));
	if (!*phStream)
		return CUDA_ERROR_OUT_OF_MEMORY;
	(*phStream)->context = context;
	(*phStream)->flags = Flags;
	return CUDA_SUCCESS;
}

/* As on the device, a priority outside the range counts as the nearest one in it; it has no effect here. */
SIM_EXPORT CUresult cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags, int priority)
{
	CUresult rc = cuStreamCreate(phStream, flags);

	if (rc == CUDA_SUCCESS)
		(*phStream)->priority = priority > LEAST_PRIORITY    ? LEAST_PRIORITY :
					priority < GREATEST_PRIORITY ? GREATEST_PRIORITY : priority;
	return rc;
}

SIM_EXPORT CUresult cuCtxGetStreamPriorityRange(int *leastPriority, int *greatestPriority)
{
	CUcontext context;
	CUresult rc = context_current(&context);

	if (rc != CUDA_SUCCESS)
		return rc;
	if (leastPriority)
		*leastPriority = LEAST_PRIORITY;
	if (greatestPriority)
		*greatestPriority = GREATEST_PRIORITY;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuStreamGetPriority(CUstream hStream, int *priority)
{
	if (!priority)
		return CUDA_ERROR_INVALID_VALUE;
	hStream = stream_named(hStream);
	*priority = !hStream ? LEAST_PRIORITY : hStream->priority;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuStreamGetFlags(CUstream hStream, unsigned int *flags)
{
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	hStream = stream_named(hStream);
	*flags = !hStream ? CU_STREAM_DEFAULT : hStream->flags;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuStreamGetCtx(CUstream hStream, CUcontext *pctx)
{
	if (!pctx)
		return CUDA_ERROR_INVALID_VALUE;
	hStream = stream_named(hStream);
	if (!hStream)
		return context_current(pctx);
	*pctx = hStream->context;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuStreamDestroy_v2(CUstream hStream)
{
	if (!hStream)
		return CUDA_ERROR_INVALID_HANDLE;
	free(hStream);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuStreamSynchronize(CUstream hStream)
{
	CUresult rc = stream_must_not_capture(hStream);

	hStream = stream_named(hStream);
	if (rc != CUDA_SUCCESS)
		return rc;
	return hStream ? queue_wait(hStream->context, hStream->last) : cuCtxSynchronize();
}
SIM_PER_THREAD(cuStreamSynchronize, _ptsz);

static CUresult state_of(CUcontext context, uint64_t number)
{
	CUresult rc;

	pthread_mutex_lock(&context->lock);
	rc = context->error ? (CUresult)context->error : context->completed < number ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
	pthread_mutex_unlock(&context->lock);
	return rc;
}

SIM_EXPORT CUresult cuStreamQuery(CUstream hStream)
{
	CUcontext context;
	CUresult rc = context_current(&context);

	if (rc == CUDA_SUCCESS)
		rc = stream_must_not_capture(hStream);
	if (rc != CUDA_SUCCESS)
		return rc;
	hStream = stream_named(hStream);
	return state_of(context, hStream ? hStream->last : context->submitted);
}
SIM_PER_THREAD(cuStreamQuery, _ptsz);

SIM_EXPORT CUresult cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags)
{
	(void)hStream, (void)Flags;
	return hEvent ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; /* the queue is in order already */
}
SIM_PER_THREAD(cuStreamWaitEvent, _ptsz);
