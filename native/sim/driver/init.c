/* cuInit: is there an MPS daemon, and which devices are there for us. */
#include "driver.h"

#include <stdlib.h>
#include <unistd.h>

struct driver driver = { .link.fd = -1, .next_context = 1 };

static pthread_mutex_t initialising = PTHREAD_MUTEX_INITIALIZER; /* one cuInit at a time */
static bool forked; /* the driver does not work in the child of an initialised process */

static void after_fork(void)
{
	forked = driver.ready;
	driver.ready = false;
}

CUresult driver_check(void)
{
	return driver.ready ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

/* Ordinals count the server's devices; errors are reported in the server's log. */
static CUresult choose_devices(void)
{
	const char *list = getenv("CUDA_VISIBLE_DEVICES");
	struct machine_view base = machine_all();
	enum machine_view_error error;

	if (driver.mps) {
		base.count = driver.link.terms.gpu_count;
		for (unsigned i = 0; i < base.count && i < MACHINE_GPUS; i++)
			base.gpu[i] = driver.link.terms.gpus[i] % MACHINE_GPUS;
	}
	driver.view = machine_visible(&base, list, &error);
	if (driver.mps && error == MACHINE_VIEW_BAD_ORDINAL) {
		mps_log("Invalid CUDA_VISIBLE_DEVICES.");
		mps_log("Client requested %s which is not a valid GPU ID in the MPS visible set of devices", list);
		mps_log("Please set CUDA_VISIBLE_DEVICES with a GPU ID less than %u or consider using UUIDs.", base.count);
	} else if (driver.mps && error == MACHINE_VIEW_BAD_UUID) {
		mps_log("Invalid set of visible devices.");
	}
	return driver.view.count ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

static CUresult initialise(void)
{
	CUresult rc;
	int attached;

	if (!machine_open())
		return CUDA_ERROR_NO_DEVICE;
	driver.pid = getpid();
	space_open();
	driver.mps = mps_probe() == 0;
	if (driver.mps) {
		attached = mps_attach(0, 0, &driver.link);
		if (attached)
			return (CUresult)attached;
	}
	rc = choose_devices();
	if (rc == CUDA_SUCCESS &&
	    machine_join(driver.mps ? MACHINE_CLIENT : MACHINE_PLAIN, driver.pid, driver.server_pid) < 0)
		rc = CUDA_ERROR_UNKNOWN;
	if (rc != CUDA_SUCCESS) {
		mps_detach(&driver.link);
		return rc;
	}
	if (driver.mps)
		listener_start();
	pthread_atfork(NULL, NULL, after_fork);
	atexit(context_bye);
	driver.ready = true;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuInit(unsigned int Flags)
{
	CUresult rc = CUDA_SUCCESS;

	if (Flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (forked)
		return CUDA_ERROR_NOT_INITIALIZED;
	pthread_mutex_lock(&initialising);
	if (!driver.ready)
		rc = initialise();
	pthread_mutex_unlock(&initialising);
	return rc;
}

SIM_EXPORT CUresult cuDriverGetVersion(int *driverVersion)
{
	if (!driverVersion)
		return CUDA_ERROR_INVALID_VALUE;
	*driverVersion = CUDA_VERSION;
	return CUDA_SUCCESS;
}
