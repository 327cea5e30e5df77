/* cuInit: the lease comes before it. */
#include "shim.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* one first cuInit at a time; held while the lease is asked for */
static bool has_lease;

/* The lease is the parent's. */
void init_after_fork(void)
{
	pthread_mutex_init(&lock, NULL);
	has_lease = false;
}

static CUresult prepare(void)
{
	CUresult result = CUDA_SUCCESS;

	pthread_mutex_lock(&lock);
	if (!has_lease) {
		result = lease_take();
		has_lease = result == CUDA_SUCCESS; /* a program may try again */
	}
	pthread_mutex_unlock(&lock);
	return result;
}

SHIM_EXPORT CUresult cuInit(unsigned flags)
{
	CUresult result;

	if (!real_load() || !real.cuInit)
		return (CUresult)ERROR_NOT_INITIALIZED;
	if (!gate_is_open() || flags) /* a wrong call is the driver's to refuse */
		return real.cuInit(flags);
	gate_depth++;
	result = prepare();
	if (result == CUDA_SUCCESS)
		result = real.cuInit(flags);
	if (result == CUDA_SUCCESS)
		gate_begin();
	gate_depth--;
	return result;
}
