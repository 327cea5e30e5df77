/* Events: a moment in a context's queue. */
#include "driver.h"

#include <stdlib.h>

void event_reached(CUcontext context, struct work *work)
{
	(void)context;
	work->event->time_ns = machine_now_ns();
}

SIM_EXPORT CUresult cuEventCreate(CUevent *phEvent, unsigned int Flags)
{
	CUcontext context;
	CUresult rc = context_current(&context);

	(void)Flags;
	if (rc != CUDA_SUCCESS)
		return rc;
	if (!phEvent)
		return CUDA_ERROR_INVALID_VALUE;
	*phEvent = calloc(1, sizeof(**phEvent));
	return *phEvent ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_EXPORT CUresult cuEventDestroy_v2(CUevent hEvent)
{
	if (!hEvent)
		return CUDA_ERROR_INVALID_HANDLE;
	if (hEvent->context)
		(void)queue_wait(hEvent->context, hEvent->number); /* the queue may still point at it */
	free(hEvent);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuEventRecord(CUevent hEvent, CUstream hStream)
{
	struct work work = { .run = event_reached, .event = hEvent };
	CUresult rc;

	if (!hEvent)
		return CUDA_ERROR_INVALID_HANDLE;
	rc = context_current(&hEvent->context);
	return rc == CUDA_SUCCESS ? queue_do(&work, hStream, false) : rc;
}
SIM_PER_THREAD(cuEventRecord, _ptsz);

SIM_EXPORT CUresult cuEventSynchronize(CUevent hEvent)
{
	if (!hEvent)
		return CUDA_ERROR_INVALID_HANDLE;
	return hEvent->context ? queue_wait(hEvent->context, hEvent->number) : CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuEventQuery(CUevent hEvent)
{
	CUcontext context;
	CUresult rc;

	if (!hEvent)
		return CUDA_ERROR_INVALID_HANDLE;
	context = hEvent->context;
	if (!context)
		return CUDA_SUCCESS;
	pthread_mutex_lock(&context->lock);
	rc = context->error ? (CUresult)context->error : context->completed < hEvent->number ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
	pthread_mutex_unlock(&context->lock);
	return rc;
}

SIM_EXPORT CUresult cuEventElapsedTime_v2(float *pMilliseconds, CUevent hStart, CUevent hEnd)
{
	CUresult rc;

	if (!pMilliseconds || !hStart || !hEnd || !hStart->context || !hEnd->context)
		return CUDA_ERROR_INVALID_HANDLE;
	rc = cuEventQuery(hEnd);
	if (rc != CUDA_SUCCESS)
		return rc;
	*pMilliseconds = (float)(int64_t)(hEnd->time_ns - hStart->time_ns) / 1e6f;
	return CUDA_SUCCESS;
}
