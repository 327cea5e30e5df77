/* A context's work: one thread does it, in the order it was given. */
#include "driver.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

static void wait_changed(CUcontext context)
{
	pthread_cond_wait(&context->changed, &context->lock);
}

/* Work that is left when the context has failed is dropped: it counts as done. */
static void *work_for_ever(void *argument)
{
	CUcontext context = argument;

	prctl(PR_SET_TIMERSLACK, 1UL);
	prctl(PR_SET_NAME, "sim-gpu-work");
	pthread_mutex_lock(&context->lock);
	for (;;) {
		struct work *work = context->first;

		if (!work) {
			if (context->stopping)
				break;
			wait_changed(context);
			continue;
		}
		context->first = work->next;
		if (!context->first)
			context->last = &context->first;
		pthread_mutex_unlock(&context->lock);
		if (!context->error && !context->stopping) {
			work->run(context, work);
			page_done(context, work);
			page_wait(context);
		}
		pthread_mutex_lock(&context->lock);
		context->completed = work->number;
		pthread_cond_broadcast(&context->changed);
		free(work);
	}
	pthread_mutex_unlock(&context->lock);
	return NULL;
}

int queue_open(CUcontext context)
{
	pthread_condattr_t attributes;
	sigset_t all, before;
	int rc;

	pthread_mutex_init(&context->lock, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&context->changed, &attributes);
	pthread_condattr_destroy(&attributes);
	context->last = &context->first;
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	rc = pthread_create(&context->worker, NULL, work_for_ever, context);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -rc;
}

/* Ends the running kernel, drops the rest, and waits for the thread. */
void queue_close(CUcontext context)
{
	pthread_mutex_lock(&context->lock);
	context->stopping = true;
	pthread_cond_broadcast(&context->changed);
	pthread_mutex_unlock(&context->lock);
	pthread_join(context->worker, NULL);
	pthread_mutex_destroy(&context->lock);
	pthread_cond_destroy(&context->changed);
}

CUresult queue_give(CUcontext context, CUstream stream, const struct work *work)
{
	struct work *copy = malloc(sizeof(*copy));

	if (!copy)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*copy = *work;
	copy->next = NULL;
	page_prepare(copy);
	pthread_mutex_lock(&context->lock);
	copy->number = ++context->submitted;
	page_given(context, copy);
	if (work->run == event_reached)
		work->event->number = copy->number;
	*context->last = copy;
	context->last = &copy->next;
	if (stream)
		stream->last = copy->number;
	pthread_cond_broadcast(&context->changed);
	pthread_mutex_unlock(&context->lock);
	return CUDA_SUCCESS;
}

/* UINT64_MAX: all that has been given so far. */
CUresult queue_wait(CUcontext context, uint64_t number)
{
	CUresult rc;

	pthread_mutex_lock(&context->lock);
	if (number == UINT64_MAX)
		number = context->submitted;
	while (context->completed < number && !context->error)
		wait_changed(context); /* for ever: work may be endless */
	rc = (CUresult)context->error;
	pthread_mutex_unlock(&context->lock);
	return rc;
}

CUresult queue_do(const struct work *work, CUstream stream, bool wait)
{
	CUcontext context;
	CUresult rc = context_current(&context);

	if (rc != CUDA_SUCCESS)
		return rc;
	stream = stream_named(stream);
	if (stream && stream->context != context)
		return CUDA_ERROR_INVALID_HANDLE;
	if (stream && stream->capture)
		return graph_take(stream, work);
	rc = queue_give(context, stream, work);
	return rc == CUDA_SUCCESS && wait ? queue_wait(context, UINT64_MAX) : rc;
}

bool queue_sleep(CUcontext context, uint64_t ns)
{
	uint64_t end = ns == UINT64_MAX ? 0 : machine_now_ns() + ns;
	struct timespec until = { .tv_sec = (time_t)(end / 1000000000u), .tv_nsec = (long)(end % 1000000000u) };
	bool whole;

	pthread_mutex_lock(&context->lock);
	while (!context->error && !context->let_go && !context->stopping) {
		if (!end)
			wait_changed(context);
		else if (pthread_cond_timedwait(&context->changed, &context->lock, &until) == ETIMEDOUT)
			break;
	}
	whole = !context->error && !context->let_go && !context->stopping;
	context->let_go = false;
	pthread_mutex_unlock(&context->lock);
	return whole;
}
