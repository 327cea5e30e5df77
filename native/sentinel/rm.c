/* SPDX-License-Identifier: MIT */
/* Calls RM on /dev/nvidiactl, as ../include/mpsd_rm.h describes it.
 *
 * RM accepts a call about a client's objects only on the open file that created the client; a duplicate of the descriptor is the
 * same open file. So the watcher searches its stopped client's objects, grants itself the right to debug the client's compute
 * object, and opens the session in a separate RM client. */
#include "sentinel.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum {
	COUNT_BITS = 0xfffff,
	MOST_CLIENTS_BACK = 64, /* each wrong guess writes a line to the kernel log; 4 to 17 were needed */
	MOST_OBJECTS = 0x1000,
	MOST_GAP = 0x300,
	MOST_DEVICES = 16,
	SMS_AT_A_TIME = 66,
	MOST_SMS = 1024,
	MIN_EVENT_FD = 700, /* RM identifies a client's events by this number, and the client itself uses some */
};

enum { OWN_DEVICE = 0x5e710080, OWN_SESSION = 0x5e7183de, OWN_EVENT = 0x5e710079 };

static int open_device(const char *path)
{
	return open(path, O_RDWR | O_CLOEXEC);
}

static int call_device(int fd, unsigned long number, void *argument)
{
	return ioctl(fd, number, argument);
}

static int (*device_open)(const char *path) = open_device;
static int (*device_call)(int fd, unsigned long number, void *argument) = call_device;

#define NUMBER(escape, type) _IOC(_IOC_READ | _IOC_WRITE, 'F', escape, sizeof(type))

static int control(int fd, uint32_t client, uint32_t object, uint32_t command, void *parameters, uint32_t size)
{
	struct mpsd_rm_control call = { .client = client, .object = object, .command = command, .parameters = (uintptr_t)parameters,
					.parameters_size = size };

	return device_call(fd, NUMBER(MPSD_RM_CONTROL, call), &call) < 0 ? -errno : (int)call.status;
}

static int allocate(int fd, uint32_t client, uint32_t parent, uint32_t *object, uint32_t class_id, void *parameters, uint32_t size)
{
	struct mpsd_rm_alloc call = { .client = client, .parent = parent, .object = *object, .class_id = class_id,
				      .parameters = (uintptr_t)parameters, .parameters_size = size };

	if (device_call(fd, NUMBER(MPSD_RM_ALLOC, call), &call) < 0)
		return -errno;
	*object = call.object;
	return (int)call.status;
}

static int class_of(int fd, uint32_t client, uint32_t object, uint32_t *class_id)
{
	struct mpsd_rm_handle_info info = { .object = object, .index = MPSD_RM_INFO_CLASS };
	int rc = control(fd, client, client, MPSD_RM_GET_HANDLE_INFO, &info, sizeof(info));

	*class_id = (uint32_t)info.value;
	return rc;
}

static int device_of(int fd, uint32_t client, uint32_t *device)
{
	struct mpsd_rm_child child = { .parent = client, .class_id = MPSD_RM_CHILD_DEVICE };
	int rc = control(fd, client, client, MPSD_RM_GET_CHILD_HANDLE, &child, sizeof(child));

	*device = child.object;
	return rc ? rc : child.object ? 0 : MPSD_RM_NO_OBJECT;
}

static bool is_compute(uint32_t class_id)
{
	return (class_id & 0xff) == 0xc0 && class_id >= 0xb0c0; /* Maxwell and later */
}

int rm_open(struct rm *rm, bool is_simulated)
{
	void *library = is_simulated ? dlopen("libcuda.so.1", RTLD_NOW) : NULL;

	if (library) {
		*(void **)&device_open = dlsym(library, "mpsd_sim_rm_open");
		*(void **)&device_call = dlsym(library, "mpsd_sim_rm_ioctl");
	}
	rm->is_simulated = is_simulated;
	rm->control = device_open("/dev/nvidiactl");
	if (rm->control < 0)
		return -errno;
	rm->own = 0;
	return allocate(rm->control, 0, 0, &rm->own, MPSD_RM_CLASS_CLIENT, NULL, 0);
}

/* Finds the handle of the RM client that was created with this descriptor: a little below our own handle, which is newer. */
static int find_client(struct rm *rm, int fd)
{
	uint32_t own = rm->own & COUNT_BITS, class_id, device;
	int rc = MPSD_RM_NO_OBJECT;

	for (uint32_t back = 1; back <= MOST_CLIENTS_BACK && back <= own; back++) {
		uint32_t client = MPSD_RM_FIRST_CLIENT + own - back;

		rc = class_of(fd, client, client, &class_id);
		if (rc)
			continue;
		rm->client_control = fd;
		rm->client = client;
		return device_of(fd, client, &device);
	}
	return rc;
}

/* Searches the numbers near the device's handle: a CUDA program's handles are consecutive. */
static int find_compute(struct rm *rm)
{
	uint32_t device, class_id, gap = 0;
	int rc = device_of(rm->client_control, rm->client, &device);

	for (uint32_t i = 0; !rc && i < MOST_OBJECTS && gap < MOST_GAP; i++) {
		uint32_t object = (device & 0xffff0000u) + i;

		if (class_of(rm->client_control, rm->client, object, &class_id)) {
			gap++;
			continue;
		}
		gap = 0;
		if (is_compute(class_id)) {
			rm->compute = object;
			return 0;
		}
	}
	return rc ? rc : MPSD_RM_NO_OBJECT;
}

int rm_find(struct rm *rm, const struct client *client)
{
	char path[64];
	int rc = MPSD_RM_NO_OBJECT;
	struct dirent *entry;
	DIR *folder;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)client->pid);
	folder = opendir(path);
	if (!folder)
		return -errno;
	while (rc && (entry = readdir(folder))) {
		int fd;

		if (!is_device(folder, entry->d_name, "nvidiactl", NULL, rm->is_simulated))
			continue;
		fd = take_descriptor(client->pidfd, atoi(entry->d_name));
		if (fd < 0)
			continue;
		rc = find_client(rm, fd);
		if (!rc)
			rc = find_compute(rm);
		if (rc)
			close(fd);
	}
	closedir(folder);
	return rc;
}

static int share_compute(const struct rm *rm)
{
	struct mpsd_rm_share call = { .client = rm->client, .object = rm->compute, .target = rm->own, .rights = MPSD_RM_ACCESS_DEBUG,
				      .type = MPSD_RM_SHARE_WITH_CLIENT, .action = MPSD_RM_SHARE_ADD };

	return device_call(rm->client_control, NUMBER(MPSD_RM_SHARE, call), &call) < 0 ? -errno : (int)call.status;
}

static int read_errors(const struct rm *rm, uint32_t first, uint32_t count, struct mpsd_rm_sm_errors *answer)
{
	memset(answer, 0, sizeof(*answer));
	answer->count = count;
	answer->first = first;
	return control(rm->control, rm->own, rm->session, MPSD_RM_READ_ALL_SM_ERRORS, answer, sizeof(*answer));
}

/* The client sees only its share's SMs, and a culprit can have others: RM refuses the first number beyond the GPU's SMs. */
static void count_sms(struct rm *rm)
{
	static struct mpsd_rm_sm_errors answer;
	uint32_t there = rm->sms, beyond = MOST_SMS;

	if (read_errors(rm, beyond - 1, 1, &answer) == 0)
		return; /* it refuses none */
	while (there + 1 < beyond) {
		uint32_t middle = there + (beyond - there) / 2;

		if (read_errors(rm, middle - 1, 1, &answer) == 0)
			there = middle;
		else
			beyond = middle;
	}
	rm->sms = there;
}

/* RM numbers the devices, and accepts the session only under the device of the compute object. */
static int open_session_on(struct rm *rm, uint32_t instance)
{
	struct mpsd_rm_device wish = { .instance = instance };
	struct mpsd_rm_debugger debugged = { .client = rm->client, .compute_object = rm->compute };
	uint32_t device = OWN_DEVICE + (instance << 8);
	int rc = allocate(rm->control, rm->own, rm->own, &device, MPSD_RM_CLASS_DEVICE, &wish, sizeof(wish));

	rm->session = OWN_SESSION;
	return rc ? rc : allocate(rm->control, rm->own, device, &rm->session, MPSD_RM_CLASS_DEBUGGER, &debugged, sizeof(debugged));
}

int rm_open_session(struct rm *rm)
{
	int rc = share_compute(rm), last = rc;

	for (uint32_t i = 0; !rc && i < MOST_DEVICES; i++) {
		char path[32];

		snprintf(path, sizeof(path), "/dev/nvidia%u", i);
		(void)device_open(path); /* stays open: RM needs the GPU attached to this process */
	}
	for (uint32_t i = 0; !rc && i < MOST_DEVICES; i++) {
		int found = open_session_on(rm, i);

		if (found == 0) {
			count_sms(rm);
			return 0;
		}
		last = i == 0 ? found : last; /* with one GPU the first answer is the cause */
	}
	return last;
}

int rm_open_event(struct rm *rm)
{
	int low = device_open("/dev/nvidiactl");
	struct mpsd_rm_os_event ready = { .client = rm->client };
	struct mpsd_rm_event wish = { .client = rm->client, .source = rm->compute, .class_id = MPSD_RM_CLASS_OS_EVENT,
				      .index = MPSD_RM_EVENT_SM_EXCEPTION | MPSD_RM_EVENT_WITHOUT_DATA };
	uint32_t event = OWN_EVENT;

	if (low < 0)
		return -errno;
	rm->event = fcntl(low, F_DUPFD_CLOEXEC, MIN_EVENT_FD);
	close(low);
	if (rm->event < 0)
		return -errno;
	ready.descriptor = (uint32_t)rm->event;
	wish.descriptor = (uint64_t)rm->event;
	if (device_call(rm->event, NUMBER(MPSD_RM_ALLOC_OS_EVENT, ready), &ready) < 0)
		return -errno;
	if (ready.status)
		return (int)ready.status;
	return allocate(rm->client_control, rm->client, rm->compute, &event, MPSD_RM_CLASS_OS_EVENT, &wish, sizeof(wish));
}

/* poll(2) clears the device's event; the simulator uses a pipe. */
void rm_clear_event(const struct rm *rm)
{
	char drain[64];

	if (rm->is_simulated)
		(void)!read(rm->event, drain, sizeof(drain));
}

/* An SM shows its error for ever: CLEAR would end that, but while others run it can leave them hanging (docs/measurements.md, run R). */
static bool is_new(const struct mpsd_rm_sm_error *sm, const struct mpsd_rm_sm_error *seen)
{
	return (sm->warp_esr && (sm->warp_esr != seen->warp_esr || sm->warp_pc != seen->warp_pc)) || (sm->global_esr & ~seen->global_esr);
}

int rm_read(const struct rm *rm, struct exception *out)
{
	static struct mpsd_rm_sm_errors answer;
	static struct mpsd_rm_sm_error seen[MOST_SMS];

	*out = (struct exception){ 0 };
	for (uint32_t first = 0; first < rm->sms; first += SMS_AT_A_TIME) {
		uint32_t left = rm->sms - first, count = left < SMS_AT_A_TIME ? left : SMS_AT_A_TIME;
		int rc;

		rc = read_errors(rm, first, count, &answer);
		if (rc)
			return rc;
		out->is_mmu |= answer.has_mmu_fault;
		for (uint32_t i = 0; i < count; i++) {
			const struct mpsd_rm_sm_error *sm = &answer.sms[i];

			if (!is_new(sm, &seen[first + i]))
				continue;
			seen[first + i] = *sm;
			if (!out->pc) {
				out->pc = sm->warp_pc;
				out->warp_esr = sm->warp_esr;
				out->global_esr = sm->global_esr;
			}
			out->is_shared |= sm->warp_esr && (sm->global_esr & MPSD_RM_SM_PAUSED);
			out->sms++;
		}
	}
	return 0;
}

int rm_resume(const struct rm *rm)
{
	return control(rm->control, rm->own, rm->session, MPSD_RM_RESUME_CONTEXT, NULL, 0);
}
