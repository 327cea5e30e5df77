/* The resource manager as a debugger of another process meets it: what mpsd-sentinel calls instead of open(2) and ioctl(2) on
 * /dev/nvidiactl.  The layouts are those of the real calls (mpsd_rm.h); a client's objects are always the same few.
 *
 * One debugger in a process, one client that it debugs; one thread. */
#include "driver.h"
#include "mpsd_rm.h"
#include "rm_page.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DEVICE = 0x5c000001, CHANNEL = 0x5c000012, COPY = 0x5c000013, COMPUTE = 0x5c000014 };
enum { CLASS_CHANNEL = 0xc86f, CLASS_COPY = 0xc8b5, CLASS_COMPUTE = 0xcbc0 };

static struct {
	uint32_t client; /* ours; 0: none yet */
	bool has_device;
	bool has_session;
	bool has_waited; /* MPSD_SIM_SM_READ_MS */
	struct rm_page *debugged; /* NULL: none yet */
	int32_t debugged_pid;     /* in the names of its files */
} own;

static const struct {
	uint32_t object, class_id;
} objects[] = { { DEVICE, MPSD_RM_CLASS_DEVICE }, { CHANNEL, CLASS_CHANNEL }, { COPY, CLASS_COPY }, { COMPUTE, CLASS_COMPUTE } };

SIM_EXPORT int mpsd_sim_rm_open(const char *path)
{
	if (strcmp(path, "/dev/nvidiactl") == 0)
		return open("/dev/null", O_RDWR | O_CLOEXEC);
	errno = ENOENT;
	return -1;
}

uint32_t rm_new_client(void)
{
	uint32_t count = 0;

	machine_lock();
	count = ++machine_open()->rm_clients;
	machine_unlock();
	return MPSD_RM_FIRST_CLIENT + count;
}

/* The page behind a duplicate of a client's descriptor; NULL: it is something else. */
static struct rm_page *page_of(int fd, int32_t *pid)
{
	char link[64], path[320] = "";
	struct rm_page *page;
	const char *name;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	if (readlink(link, path, sizeof(path) - 1) <= 0 || !(name = strrchr(path, '/')) || !strstr(name, ".control"))
		return NULL;
	*pid = atoi(name + 1);
	page = mmap(NULL, RM_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	return page == MAP_FAILED ? NULL : page;
}

/* Take the client of this descriptor as the one that is debugged, if the handle is its own. */
static bool meet(int fd, uint32_t client)
{
	int32_t pid;
	struct rm_page *page = page_of(fd, &pid);

	if (!page)
		return false;
	if (page->magic != RM_PAGE_MAGIC || page->client != client) {
		munmap(page, RM_PAGE_BYTES);
		return false;
	}
	if (own.debugged)
		munmap(own.debugged, RM_PAGE_BYTES);
	own.debugged = page;
	own.debugged_pid = pid;
	return true;
}

static uint32_t handle_info(uint32_t client, struct mpsd_rm_handle_info *info)
{
	if (info->index != MPSD_RM_INFO_CLASS)
		return MPSD_RM_BAD_ARGUMENT;
	info->value = info->object == client ? MPSD_RM_CLASS_CLIENT : 0;
	for (size_t i = 0; i < sizeof(objects) / sizeof(*objects); i++)
		if (objects[i].object == info->object)
			info->value = objects[i].class_id;
	return info->value ? MPSD_RM_DONE : MPSD_RM_NO_OBJECT;
}

static uint32_t child_handle(uint32_t client, struct mpsd_rm_child *child)
{
	child->object = child->parent == client && child->class_id == MPSD_RM_CHILD_DEVICE ? DEVICE : 0;
	return MPSD_RM_DONE;
}

/* Of the client with the descriptor `fd`. */
static uint32_t control_client(int fd, const struct mpsd_rm_control *call)
{
	void *parameters = (void *)(uintptr_t)call->parameters;

	if (call->object != call->client || !meet(fd, call->client))
		return MPSD_RM_NO_PERMISSION;
	if (call->command == MPSD_RM_GET_HANDLE_INFO && call->parameters_size == sizeof(struct mpsd_rm_handle_info))
		return handle_info(call->client, parameters);
	if (call->command == MPSD_RM_GET_CHILD_HANDLE && call->parameters_size == sizeof(struct mpsd_rm_child))
		return child_handle(call->client, parameters);
	return MPSD_RM_BAD_ARGUMENT;
}

static uint32_t read_errors(struct mpsd_rm_sm_errors *out)
{
	struct rm_page *page = own.debugged;
	unsigned long ms = machine_knob("MPSD_SIM_SM_READ_MS", 0);
	uint32_t sms = __atomic_load_n(&page->sms, __ATOMIC_ACQUIRE);

	if (!out->count || out->count > MPSD_RM_SMS_PER_CALL || out->first + out->count > MACHINE_SMS)
		return MPSD_RM_BAD_ARGUMENT;
	if (ms && sms && !own.has_waited) {
		own.has_waited = true;
		machine_sleep_ms((unsigned)ms);
	}
	memset(out->sms, 0, sizeof(out->sms));
	for (uint32_t i = 0; i < out->count && out->first + i < sms; i++)
		out->sms[i] = (struct mpsd_rm_sm_error){ .global_esr = page->global_esr, .warp_esr = page->warp_esr,
							 .warp_pc_low = (uint32_t)page->pc, .warp_pc = page->pc };
	return MPSD_RM_DONE;
}

static uint32_t resume(void)
{
	__atomic_store_n(&own.debugged->resumed_ns, machine_now_ns(), __ATOMIC_RELAXED);
	__atomic_fetch_add(&own.debugged->resumes, 1, __ATOMIC_RELEASE); /* pairs with exception.c of the server */
	return MPSD_RM_DONE;
}

static uint32_t control_session(const struct mpsd_rm_control *call)
{
	void *parameters = (void *)(uintptr_t)call->parameters;

	if (!own.has_session)
		return MPSD_RM_NO_OBJECT;
	if (call->command == MPSD_RM_READ_ALL_SM_ERRORS && call->parameters_size == sizeof(struct mpsd_rm_sm_errors))
		return read_errors(parameters);
	return call->command == MPSD_RM_RESUME_CONTEXT && !parameters ? resume() : MPSD_RM_BAD_ARGUMENT;
}

static uint32_t allocate_session(const struct mpsd_rm_debugger *wish)
{
	if (!own.has_device || !own.debugged || wish->client != own.debugged->client || wish->compute_object != COMPUTE)
		return MPSD_RM_BAD_ARGUMENT;
	if (own.debugged->shared_with != own.client)
		return MPSD_RM_NO_PERMISSION;
	own.has_session = true;
	own.debugged->has_session = 1;
	return MPSD_RM_DONE;
}

static uint32_t allocate(struct mpsd_rm_alloc *call)
{
	void *parameters = (void *)(uintptr_t)call->parameters;
	const struct mpsd_rm_event *event = parameters;

	if (call->class_id == MPSD_RM_CLASS_CLIENT) {
		call->object = own.client = rm_new_client();
		return MPSD_RM_DONE;
	}
	if (call->class_id == MPSD_RM_CLASS_OS_EVENT)
		return event->source == COMPUTE && event->index == (MPSD_RM_EVENT_SM_EXCEPTION | MPSD_RM_EVENT_WITHOUT_DATA) ?
			       MPSD_RM_DONE : MPSD_RM_BAD_ARGUMENT;
	if (!own.client || call->client != own.client)
		return MPSD_RM_NO_OBJECT;
	if (call->class_id == MPSD_RM_CLASS_DEVICE && call->parameters_size == sizeof(struct mpsd_rm_device)) {
		own.has_device = ((struct mpsd_rm_device *)parameters)->instance == 0;
		return own.has_device ? MPSD_RM_DONE : MPSD_RM_BAD_ARGUMENT;
	}
	if (call->class_id == MPSD_RM_CLASS_DEBUGGER && call->parameters_size == sizeof(struct mpsd_rm_debugger))
		return allocate_session(parameters);
	return MPSD_RM_BAD_ARGUMENT;
}

static uint32_t share(int fd, const struct mpsd_rm_share *call)
{
	if (!meet(fd, call->client) || call->object != COMPUTE || !(call->rights & MPSD_RM_ACCESS_DEBUG))
		return MPSD_RM_NO_PERMISSION;
	own.debugged->shared_with = call->target;
	return MPSD_RM_DONE;
}

/* The descriptor becomes the reading end of the client's FIFO. */
static uint32_t allocate_os_event(const struct mpsd_rm_os_event *call)
{
	char path[320];
	int fifo;

	if (!own.debugged || call->client != own.debugged->client)
		return MPSD_RM_NO_OBJECT;
	snprintf(path, sizeof(path), "%s/uvm/%d.sm", machine_directory(), (int)own.debugged_pid);
	unlink(path);
	if (mkfifo(path, 0600) < 0 || chmod(path, 0666) < 0) /* the server may be another user's */
		return MPSD_RM_BAD_ARGUMENT;
	fifo = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
	if (fifo < 0 || dup3(fifo, (int)call->descriptor, O_CLOEXEC) < 0)
		return MPSD_RM_BAD_ARGUMENT;
	close(fifo);
	return MPSD_RM_DONE;
}

/* Behaves like ioctl(2) on a descriptor of /dev/nvidiactl, or on a duplicate of a client's PID.control: 0, and the answer in the
 * structure; or -1 and errno. */
SIM_EXPORT int mpsd_sim_rm_ioctl(int fd, unsigned long number, void *argument)
{
	struct mpsd_rm_control *control = argument;
	struct mpsd_rm_alloc *alloc = argument;
	struct mpsd_rm_share *shared = argument;
	struct mpsd_rm_os_event *event = argument;

	if (!machine_open()) {
		errno = ENODEV;
		return -1;
	}
	switch (number) {
	case _IOC(_IOC_READ | _IOC_WRITE, 'F', MPSD_RM_CONTROL, sizeof(*control)):
		control->status = own.client && control->client == own.client ? control_session(control) : control_client(fd, control);
		return 0;
	case _IOC(_IOC_READ | _IOC_WRITE, 'F', MPSD_RM_ALLOC, sizeof(*alloc)):
		alloc->status = allocate(alloc);
		return 0;
	case _IOC(_IOC_READ | _IOC_WRITE, 'F', MPSD_RM_SHARE, sizeof(*shared)):
		shared->status = share(fd, shared);
		return 0;
	case _IOC(_IOC_READ | _IOC_WRITE, 'F', MPSD_RM_ALLOC_OS_EVENT, sizeof(*event)):
		event->status = allocate_os_event(event);
		return 0;
	}
	errno = EINVAL;
	return -1;
}
