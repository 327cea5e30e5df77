/* The effects of one client's fault on all clients, and their times. The numbers are measured: docs/simulator.md. */
#include "server.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { TRAP_LATE_ONE_IN = 4, TRAP_LATE_MS = 250 };
enum { CONTINUED_MS = 3, CONTINUED_SPREAD_MS = 12 }; /* once the client that was stopped continues: the others' errors */

struct course { /* milliseconds after the access */
	unsigned culprit_ms;
	int culprit_code; /* 0: its call even succeeds, and it gets the error with the others */
	unsigned known_ms;
	unsigned others_ms, spread_ms;
	int others_code; /* 0: contained, no other client notices */
	unsigned xid_ms;
	enum { XID_NONE, XID_CLIENT, XID_SERVER, XID_CHANNEL, XID_EXCEPTION } xid;
	const char *exception;
};

static const struct course courses[FAULT_CLASSES] = {
	[FAULT_MMU] = { 150, 700, 138, 150, 5, 700, 125, XID_CLIENT, NULL },
	[FAULT_TRAP] = { 11, 719, 17, 95, 5, 719, 15, XID_CHANNEL, NULL },
	[FAULT_ASSERT] = { 15, 710, 0, 0, 0, 0, 0, XID_NONE, NULL },
	[FAULT_DUMPED_ASSERT] = { 65, 0, 17, 95, 5, 719, 15, XID_CHANNEL, NULL },
	[FAULT_ILLEGAL] = { 40, 715, 17, 38, 28, 715, 15, XID_EXCEPTION, "Illegal Instruction Encoding" },
	[FAULT_MISALIGNED] = { 7, 0, 17, 38, 28, 716, 15, XID_EXCEPTION, "Misaligned Address" },
	[FAULT_STACK] = { 40, 700, 17, 38, 28, 700, 15, XID_EXCEPTION, "Out Of Range Address" },
	[FAULT_KILLED] = { 0, 0, 150, 157, 5, 700, 134, XID_SERVER, NULL },
	[FAULT_DEVICE] = { 5, 719, 2, 5, 20, 719, 0, XID_NONE, NULL },
};

static struct {
	const struct course *course; /* NULL: no fault is on its way */
	uint64_t xid_ns, known_ns;   /* 0: has happened, or will not */
	unsigned gpu;
	char access[128];
} coming;

static uint64_t after(uint64_t start, unsigned ms)
{
	return start + ms * (machine_is_fast() ? 100000ull : 1000000ull);
}

/* The client that the log and Xid 31 name: the one connected longest, guilty or not. */
static const struct connection *scapegoat(const struct server *server)
{
	for (unsigned i = 0; i < server->count; i++)
		if (server->list[i].fd >= 0 && server->list[i].context && !server->list[i].refusal)
			return &server->list[i];
	return NULL;
}

static void doom(struct connection *client, const struct course *course, uint64_t start, bool is_culprit)
{
	unsigned spread = course->spread_ms ? (unsigned)rand() % course->spread_ms : 0;
	bool late = course == &courses[FAULT_TRAP] && rand() % TRAP_LATE_ONE_IN == 0;
	uint64_t others_ns = after(start, course->others_ms + spread + (late ? TRAP_LATE_MS : 0));

	client->fail_class = (unsigned)(course - courses);
	client->fail_code = is_culprit ? course->culprit_code : course->others_code;
	client->fail_ns = is_culprit ? after(start, course->culprit_ms) : others_ns;
	client->late_code = client->fail_code ? 0 : course->others_code;
	client->late_ns = others_ns;
	client->in_reset = is_culprit && course->xid != XID_CLIENT;
	client->doomed = course->others_code != 0;
}

static void raise_xids(struct server *server)
{
	const struct connection *named = scapegoat(server);

	coming.xid_ns = 0;
	switch (coming.course->xid) {
	case XID_NONE:
		return;
	case XID_CLIENT:
		machine_xid_mmu(coming.gpu, named ? named->pid : getpid(), coming.access);
		return;
	case XID_SERVER:
		machine_xid_mmu(coming.gpu, getpid(), "faulted @ 0x7f9b_03754000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ");
		return;
	case XID_EXCEPTION:
		machine_xid_exception(coming.gpu, coming.course->exception);
		machine_xid_channel(coming.gpu, getpid());
		return;
	case XID_CHANNEL:
		machine_xid_channel(coming.gpu, getpid());
		return;
	}
}

bool fault_is_near(const struct server *server)
{
	return coming.known_ns || server->fault;
}

/* A client that connects while the fault is in progress is lost with the others, though its own work may be faulting too. */
static void doom_late_comers(struct server *server, uint64_t now)
{
	for (unsigned i = 0; i < server->count; i++) {
		struct connection *client = &server->list[i];

		if (client->fd >= 0 && !client->refusal && !client->doomed && !client->terminated)
			doom(client, coming.course, now, false);
	}
}

static uint64_t xid_time(const struct course *course, uint64_t start)
{
	uint64_t late_ms = machine_knob("MPSD_SIM_XID_DELAY_MS", 0);

	return course->xid == XID_NONE ? 0 : after(start, course->xid_ms) + late_ms * 1000000ull;
}

/* With a stopped client the culprit alone learns of an SM exception; one that hangs learns nothing. */
static bool block(struct server *server, pid_t pid, enum fault_class class, const char *detail, uint64_t start)
{
	const struct course *course = &courses[class];
	struct connection *culprit = NULL;

	for (unsigned i = 0; i < server->count; i++)
		if (server->list[i].fd >= 0 && server->list[i].pid == pid && server->list[i].context)
			culprit = &server->list[i];
	if (!culprit || !exception_begin(server, culprit, class, detail, after(start, course->culprit_ms)))
		return false;
	coming.gpu = culprit->gpu;
	server->culprit = pid;
	culprit->fail_class = class;
	culprit->doomed = true;
	if (exception_hangs_culprit())
		return true;
	culprit->fail_code = course->culprit_code;
	culprit->fail_ns = after(start, course->culprit_ms);
	if (machine_knob("MPSD_SIM_CONTAINED_XID", 0)) {
		coming.course = course;
		coming.known_ns = 0; /* the server cannot act on it */
		coming.xid_ns = xid_time(course, start);
	}
	return true;
}

void fault_continue(struct server *server, enum fault_class class)
{
	uint64_t now = machine_now_ns();

	coming.course = &courses[class];
	coming.known_ns = now;
	coming.xid_ns = now;
	coming.access[0] = '\0';
	for (unsigned i = 0; i < server->count; i++) {
		struct connection *client = &server->list[i];

		if (client->fd < 0 || client->refusal || client->terminated || client->doomed)
			continue;
		doom(client, coming.course, now, false);
		client->fail_ns = after(now, CONTINUED_MS + (unsigned)rand() % CONTINUED_SPREAD_MS);
	}
}

/* Only the first fault counts: what follows is its consequence. */
void fault_begin(struct server *server, const struct connection *culprit, enum fault_class class, const char *access)
{
	const struct course *course = &courses[class];
	pid_t pid = culprit ? culprit->pid : 0;
	uint64_t start = machine_now_ns();

	if (fault_is_near(server))
		return;
	if (culprit && block(server, culprit->pid, class, access, start))
		return;
	if (coming.xid_ns)
		raise_xids(server); /* those of the fault before, late as they are */
	coming.gpu = culprit ? culprit->gpu : server->view.gpu[0];
	for (unsigned i = 0; i < server->count; i++) {
		struct connection *client = &server->list[i];

		if (client->fd >= 0 && !client->refusal && !client->terminated &&
		    (course->others_code || client->pid == pid))
			doom(client, course, start, client->pid == pid);
	}
	if (!course->others_code)
		return;
	coming.course = course;
	server->culprit = pid;
	coming.xid_ns = xid_time(course, start);
	coming.known_ns = after(start, course->known_ms);
	snprintf(coming.access, sizeof(coming.access), "%s", access);
}

static void log_fault(struct server *server)
{
	const struct connection *named = scapegoat(server);

	if (named && (coming.course->xid == XID_CLIENT || coming.course->xid == XID_SERVER))
		log_server("Client {PID: %d, Context: %d} encountered a fatal GPU error.", (int)named->pid, named->context);
	log_server("Server is handling a fatal GPU error.");
	for (unsigned i = 0; i < server->count; i++)
		if (server->list[i].doomed && server->list[i].context)
			log_server("Client {PID: %d, Context ID: %d} on device %u to be torn down", (int)server->list[i].pid,
				   server->list[i].context, coming.gpu);
	for (unsigned i = 0; i < server->count; i++) {
		int pid = (int)server->list[i].pid;

		if (!server->list[i].doomed || !server->list[i].context)
			continue;
		log_server("All clients belonging to error trigging process %d will be torn down", pid);
		log_server("Client {PID: %d, Context ID: %d} on the error-trigging process %d to be torn down", pid,
			   server->list[i].context, pid);
	}
	log_server("The following devices will be reset:");
	log_server("%u", coming.gpu);
	log_server("The following client process have a sticky error set:");
	for (unsigned i = 0; i < server->count; i++)
		if (server->list[i].doomed && server->list[i].context == 0)
			log_server("%d", (int)server->list[i].pid);
}

static bool has_doomed_context(const struct server *server)
{
	for (unsigned i = 0; i < server->count; i++)
		if (server->list[i].fd >= 0 && server->list[i].doomed && server->list[i].context)
			return true;
	return false;
}

/* FAULT ends with the last old context, even while old processes are still connected. */
void fault_client_gone(struct server *server)
{
	if (!server->fault || has_doomed_context(server))
		return;
	for (unsigned i = 0; i < server->view.count; i++) {
		unsigned gpu = server->view.gpu[i];

		log_server("Destroy server context on device %u (%s)", i, machine_open()->gpus[gpu].name);
		machine_release(gpu, (uint64_t)SERVER_CONTEXT_MIB << 20);
		machine_lock();
		machine_self()->contexts[gpu] = 0;
		machine_unlock();
	}
	server->destroyed = true;
	server->fault = false;
}

static void tell(struct connection *client)
{
	struct link_head head = { .status = client->fail_code, .flags = client->fail_class };

	link_send(client->fd, LINK_FAULTED, head, NULL, 0, LINK_NO_FD);
	client->fail_ns = client->late_code ? client->late_ns : 0;
	client->fail_code = client->late_code;
	client->late_code = 0;
}

/* `mpsd-sim xid` leaves a mark on the processes of the GPU. */
static void look_for_device_fault(struct server *server)
{
	struct machine_process *self = machine_self();

	if (!self->faulted)
		return;
	machine_lock();
	self->faulted = 0;
	machine_unlock();
	fault_begin(server, NULL, FAULT_DEVICE, "");
}

void fault_run(struct server *server, uint64_t now)
{
	look_for_device_fault(server);
	if (coming.course && coming.xid_ns && now >= coming.xid_ns)
		raise_xids(server);
	if (coming.course && coming.known_ns && now >= coming.known_ns) {
		coming.known_ns = 0;
		doom_late_comers(server, now);
		log_fault(server);
		server->fault = true;
		fault_client_gone(server);
	}
	if (coming.course && !coming.xid_ns && !coming.known_ns)
		coming.course = NULL;
	for (unsigned i = 0; i < server->count; i++)
		if (server->list[i].fd >= 0 && server->list[i].fail_ns && now >= server->list[i].fail_ns)
			tell(&server->list[i]);
}

uint64_t fault_next_ns(const struct server *server)
{
	uint64_t next = coming.course ? coming.xid_ns : 0;

	if (coming.course && coming.known_ns && (!next || coming.known_ns < next))
		next = coming.known_ns;
	for (unsigned i = 0; i < server->count; i++)
		if (server->list[i].fd >= 0 && server->list[i].fail_ns && (!next || server->list[i].fail_ns < next))
			next = server->list[i].fail_ns;
	return next;
}
