/* Contexts: making them, ending them, and telling them that they have failed. */
#include "driver.h"

#include <stdlib.h>

enum { CONTEXTS = 1024, PLAIN_CONTEXT_MS = 180 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects `contexts` */
static CUcontext contexts[CONTEXTS];

bool context_is_known(CUcontext context)
{
	bool known = false;

	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < CONTEXTS && !known; i++)
		known = context && contexts[i] == context;
	pthread_mutex_unlock(&lock);
	return known;
}

static bool remember(CUcontext old, CUcontext fresh)
{
	bool done = false;

	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < CONTEXTS && !done; i++)
		if (contexts[i] == old) {
			contexts[i] = fresh;
			done = true;
		}
	pthread_mutex_unlock(&lock);
	return done;
}

void context_fail(CUcontext context, int error)
{
	pthread_mutex_lock(&context->lock);
	if (!error)
		context->let_go = true;
	else if (!context->error)
		context->error = error;
	pthread_cond_broadcast(&context->changed);
	pthread_mutex_unlock(&context->lock);
}

void context_fail_all(int error)
{
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < CONTEXTS; i++)
		if (contexts[i])
			context_fail(contexts[i], error);
	pthread_mutex_unlock(&lock);
}

void context_fail_on(int fd, int error)
{
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < CONTEXTS; i++)
		if (contexts[i] && contexts[i]->link.fd == fd)
			context_fail(contexts[i], error);
	pthread_mutex_unlock(&lock);
}

bool context_accuse(enum fault_class fault)
{
	struct link_head head = { .status = (int)fault };
	bool told = false;

	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < CONTEXTS && !told; i++)
		if (contexts[i] && contexts[i]->link.fd >= 0)
			told = link_send(contexts[i]->link.fd, LINK_FAULT, head, "", 1, LINK_NO_FD) == 0;
	pthread_mutex_unlock(&lock);
	return told;
}

void context_bye(void)
{
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < CONTEXTS; i++)
		if (contexts[i] && contexts[i]->link.fd >= 0)
			link_send(contexts[i]->link.fd, LINK_BYE, (struct link_head){ 0 }, NULL, 0, LINK_NO_FD);
	pthread_mutex_unlock(&lock);
}

/* On the machine: the right to have one, and its own memory. */
static CUresult take_place(CUcontext context)
{
	CUresult rc;
	bool may;

	machine_lock();
	may = machine_may_create_context(context->gpu);
	if (may)
		machine_self()->contexts[context->gpu]++;
	machine_unlock();
	if (!may)
		return CUDA_ERROR_DEVICE_UNAVAILABLE;
	context->overhead_bytes = (uint64_t)DRIVER_CONTEXT_MIB << 20;
	rc = memory_charge(context, context->overhead_bytes);
	if (rc == CUDA_SUCCESS)
		return rc;
	machine_lock();
	machine_self()->contexts[context->gpu]--;
	machine_unlock();
	return rc;
}

static void give_place_back(CUcontext context)
{
	memory_release(context->gpu, context->overhead_bytes);
	machine_lock();
	machine_self()->contexts[context->gpu]--;
	machine_unlock();
}

/* After the death of a server a process may start again, if the program asks for a new context. */
static int reconnect(void)
{
	int rc;

	listener_forget(driver.link.fd);
	mps_detach(&driver.link);
	rc = mps_attach(0, 0, &driver.link);
	if (rc)
		return rc;
	driver.lost = false;
	listener_watch(driver.link.fd);
	return machine_join(MACHINE_CLIENT, driver.pid, driver.server_pid) < 0 ? CUDA_ERROR_UNKNOWN : 0;
}

/* Under MPS each context has its own connection to the server. */
static CUresult connect_context(CUcontext context)
{
	int rc;

	context->link.fd = -1;
	if (driver.doomed)
		return (CUresult)driver.doomed;
	if (!driver.mps) {
		machine_sleep_ms(machine_delay_ms(PLAIN_CONTEXT_MS, 2));
		return CUDA_SUCCESS;
	}
	rc = driver.lost ? reconnect() : 0;
	if (rc == 0)
		rc = mps_attach(__atomic_fetch_add(&driver.next_context, 1, __ATOMIC_RELAXED), context->gpu,
				&context->link);
	if (rc == 0)
		driver.link.terms = context->link.terms;
	return (CUresult)rc;
}

CUresult context_new(CUdevice device, bool primary, CUcontext *out)
{
	CUcontext context = calloc(1, sizeof(*context));
	CUresult rc;

	if (!context)
		return CUDA_ERROR_OUT_OF_MEMORY;
	context->device = device;
	context->gpu = driver.view.gpu[device];
	context->primary = primary;
	rc = connect_context(context);
	if (rc != CUDA_SUCCESS)
		goto no_link;
	rc = take_place(context);
	if (rc != CUDA_SUCCESS)
		goto no_place;
	rc = CUDA_ERROR_OUT_OF_MEMORY;
	if (queue_open(context) < 0)
		goto no_queue;
	if (!remember(NULL, context))
		goto no_slot;
	if (context->link.fd >= 0)
		listener_watch(context->link.fd);
	space_register();
	*out = context;
	return CUDA_SUCCESS;
no_slot:
	queue_close(context);
no_queue:
	give_place_back(context);
no_place:
	mps_detach(&context->link);
no_link:
	free(context);
	return rc;
}

void context_free(CUcontext context)
{
	remember(context, NULL);
	if (context->link.fd >= 0) {
		listener_forget(context->link.fd);
		link_send(context->link.fd, LINK_BYE, (struct link_head){ 0 }, NULL, 0, LINK_NO_FD);
	}
	queue_close(context);
	give_place_back(context);
	mps_detach(&context->link);
	free(context);
}
