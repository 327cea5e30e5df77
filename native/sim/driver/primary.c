/* The one context per device that everybody in a process shares. */
#include "driver.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects `primaries`; may block on a server */
static CUcontext primaries[DRIVER_DEVICES];

static CUresult check(CUdevice device)
{
	if (!driver.ready)
		return CUDA_ERROR_NOT_INITIALIZED;
	return device < 0 || (unsigned)device >= driver.view.count ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
	CUresult rc = check(dev);

	if (rc != CUDA_SUCCESS)
		return rc;
	if (!pctx)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&lock);
	if (!primaries[dev])
		rc = context_new(dev, true, &primaries[dev]);
	if (rc == CUDA_SUCCESS) {
		primaries[dev]->references++;
		*pctx = primaries[dev];
	}
	pthread_mutex_unlock(&lock);
	return rc;
}

static CUresult let_go(CUdevice device, bool all)
{
	CUresult rc = check(device);
	CUcontext gone = NULL;

	if (rc != CUDA_SUCCESS)
		return rc;
	pthread_mutex_lock(&lock);
	if (!primaries[device]) {
		rc = all ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
	} else if (all || --primaries[device]->references == 0) {
		gone = primaries[device];
		primaries[device] = NULL;
	}
	pthread_mutex_unlock(&lock);
	if (gone)
		context_free(gone);
	return rc;
}

SIM_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
	return let_go(dev, false);
}

SIM_EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
	return let_go(dev, true);
}

/* How a thread waits makes no difference here. */
SIM_EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags)
{
	(void)flags;
	return check(dev);
}

SIM_EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
	CUresult rc = check(dev);

	if (rc != CUDA_SUCCESS)
		return rc;
	if (!flags || !active)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = 0;
	pthread_mutex_lock(&lock);
	*active = primaries[dev] != NULL;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}
