/* An SM exception while a client of the server is stopped: the server cannot end its clients, so that all work stands still,
 * until the stopped client continues or ends (then all end as usual), or a debugger resumes the GPU (then all others go on).
 * Measured: docs/simulator.md, "SM exceptions with a stopped client". */
#include "mpsd_rm.h"
#include "rm_page.h"
#include "server.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

enum { EVENT_MS = 4, REST_EVENT_MS = 9, STUCK_EVENT_MS = 98, STUCK_SMS = 42, LOOK_MS = 2 };

static struct {
	bool is_blocked;
	bool is_resumed;  /* the debugger has finished */
	bool is_broken;   /* what it did does not help: the culprit's warps have lost their memory */
	bool is_wide;     /* all SMs show it */
	unsigned rest;    /* how many more times the same SMs report it */
	bool hangs;       /* the culprit's kernel never ends by itself */
	enum fault_class class;
	pid_t culprit;
	pid_t kept_space; /* of the culprit, which has gone: it must stay until the end of the exception; 0: none */
	pid_t stopped;    /* it matters when this client continues or ends */
	pid_t hangs_on;   /* a client that no resume continues; 0: none */
	bool is_shared;   /* ... since its block is on the SM of a failed warp */
	uint64_t culprit_knows_ns;
	uint64_t event_ns; /* 0: it has fired */
	struct rm_page *page; /* of the stopped client; NULL: none */
	uint32_t resumes; /* of the page, before this exception */
} now_held;

static bool is_exception(enum fault_class class)
{
	return class == FAULT_TRAP || class == FAULT_ILLEGAL || class == FAULT_MISALIGNED || class == FAULT_STACK;
}

static const struct connection *stopped_client(const struct server *server, pid_t culprit)
{
	for (unsigned i = 0; i < server->count; i++) {
		const struct connection *client = &server->list[i];

		if (client->fd >= 0 && client->context && !client->refusal && client->pid != culprit && process_is_stopped(client->pid))
			return client;
	}
	return NULL;
}

static void hold_others(struct server *server, bool is_held)
{
	for (unsigned i = 0; i < server->count; i++)
		if (server->list[i].page && server->list[i].pid != now_held.culprit)
			server->list[i].page->is_held = is_held || server->list[i].pid == now_held.hangs_on;
}

/* Returns the first client that has no part in it. */
static pid_t first_other(const struct server *server)
{
	for (unsigned i = 0; i < server->count; i++) {
		const struct connection *client = &server->list[i];

		if (client->fd >= 0 && client->context && client->pid != now_held.culprit && client->pid != now_held.stopped &&
		    !client->fail_code)
			return client->pid;
	}
	return 0;
}

static void forget_page(void)
{
	if (now_held.page)
		munmap(now_held.page, RM_PAGE_BYTES);
	now_held.page = NULL;
}

static void forget_space(struct server *server)
{
	pid_t kept = now_held.kept_space;

	now_held.kept_space = 0;
	space_forget(server, kept);
}

static void show_error(const struct connection *stopped, const char *detail)
{
	int fd = stopped->page ? space_open_file(stopped->page->space_pid, "control") : -1;
	struct rm_page *page = MAP_FAILED;
	unsigned long long pc = 0;

	forget_page();
	if (fd >= 0)
		page = mmap(NULL, RM_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (fd >= 0)
		close(fd);
	if (page == MAP_FAILED)
		return;
	now_held.page = page;
	now_held.resumes = __atomic_load_n(&page->resumes, __ATOMIC_ACQUIRE);
	(void)sscanf(detail, "pc %llx", &pc);
	page->pc = pc;
	page->warp_esr = pc ? 1 : 0; /* a trap shows neither */
	page->global_esr = !pc || now_held.is_shared ? MPSD_RM_SM_PAUSED : 0;
	__atomic_store_n(&page->sms, now_held.is_wide ? MACHINE_SMS : 1, __ATOMIC_RELEASE);
}

static uint64_t after_ms(unsigned ms)
{
	return machine_now_ns() + ms * (machine_is_fast() ? 100000ull : 1000000ull);
}

bool exception_begin(struct server *server, struct connection *culprit, enum fault_class class, const char *detail,
		     uint64_t culprit_knows_ns)
{
	const struct connection *stopped = is_exception(class) ? stopped_client(server, culprit->pid) : NULL;
	bool is_second = now_held.is_blocked && now_held.is_resumed;
	unsigned again = (unsigned)machine_knob("MPSD_SIM_SM_WIDE", 0);

	if (!stopped)
		return false;
	now_held.is_blocked = true;
	now_held.is_resumed = now_held.is_broken = false;
	now_held.is_wide = again > 0;
	now_held.rest = class == FAULT_TRAP ? again : 0;
	now_held.hangs = class == FAULT_STACK;
	now_held.class = class;
	forget_space(server); /* of the exception before */
	now_held.culprit = culprit->pid;
	now_held.stopped = stopped->pid;
	now_held.culprit_knows_ns = culprit_knows_ns;
	now_held.event_ns = after_ms(EVENT_MS) + machine_knob("MPSD_SIM_SM_EVENT_DELAY_MS", 0) * 1000000ull;
	/* The blocks that share an SM with a trap continue.  After a second exception the client with the longest kernels hangs. */
	now_held.is_shared = class != FAULT_TRAP && machine_knob("MPSD_SIM_SM_SHARED", 0);
	now_held.hangs_on = now_held.is_shared || is_second ? first_other(server) : 0;
	show_error(stopped, detail);
	hold_others(server, true);
	return true;
}

bool exception_blocks(void)
{
	return now_held.is_blocked;
}

bool exception_hangs_culprit(void)
{
	return now_held.hangs;
}

static void fire(struct server *server)
{
	now_held.event_ns = 0;
	for (unsigned i = 0; i < server->count; i++) {
		const struct connection *client = &server->list[i];
		int fifo = client->fd >= 0 && client->context && client->page ? space_open_file(client->page->space_pid, "sm") : -1;

		if (fifo >= 0 && fcntl(fifo, F_SETFL, O_NONBLOCK) == 0)
			(void)!write(fifo, "", 1);
		if (fifo >= 0)
			close(fifo);
	}
}

/* All other work stands still until the next RESUME; a debugger can have resumed it before the event. */
static void report(struct server *server)
{
	if (!now_held.is_resumed)
		hold_others(server, true);
	fire(server);
}

static bool was_resumed_once(void)
{
	return now_held.page && __atomic_load_n(&now_held.page->resumes, __ATOMIC_ACQUIRE) != now_held.resumes;
}

/* All clients go on after one RESUME, and the SMs still show the exception.  With MPSD_SIM_SM_STUCK they do not, and more SMs show it
 * (once of 67 on the device).  With MPSD_SIM_SM_WIDE the same SMs report a trap that many more times, each time until another RESUME. */
static void look_for_debugger(struct server *server)
{
	if (now_held.is_resumed || !was_resumed_once())
		return;
	if (machine_knob("MPSD_SIM_SM_STUCK", 0)) {
		now_held.resumes = __atomic_load_n(&now_held.page->resumes, __ATOMIC_ACQUIRE);
		now_held.event_ns = after_ms(STUCK_EVENT_MS);
		__atomic_store_n(&now_held.page->sms, STUCK_SMS, __ATOMIC_RELEASE);
		return;
	}
	now_held.is_resumed = !now_held.rest;
	if (now_held.rest) {
		now_held.resumes = __atomic_load_n(&now_held.page->resumes, __ATOMIC_ACQUIRE);
		now_held.event_ns = after_ms(REST_EVENT_MS);
		now_held.rest--;
	}
	if (!now_held.is_broken)
		hold_others(server, false);
}

static bool was_resumed_early(void)
{
	const struct rm_page *page = now_held.page;

	return page && page->resumes != now_held.resumes && page->resumed_ns < now_held.culprit_knows_ns;
}

static void look_for_space(struct server *server)
{
	if (now_held.is_broken || (now_held.kept_space && space_is_held(now_held.kept_space)))
		return;
	now_held.is_broken = true;
	hold_others(server, true);
}

/* A culprit that ends before the first RESUME takes its memory from under its warps, unless another process holds its address
 * space. So does one that hangs, and one with an error that was resumed away. The others then hang. */
void exception_client_gone(struct server *server, const struct connection *client)
{
	if (!now_held.is_blocked || client->pid != now_held.culprit || !client->context)
		return;
	if (was_resumed_once() && !now_held.hangs && !was_resumed_early())
		return;
	now_held.kept_space = client->space_pid; /* a dying process closes it a little later than its connection */
	look_for_space(server);
}

bool exception_keeps(pid_t space_pid)
{
	return now_held.is_blocked && now_held.kept_space == space_pid;
}

/* Nothing is stopped any more: what the server could not do until now happens at once. */
static void end(struct server *server)
{
	now_held.hangs_on = 0;
	hold_others(server, false);
	forget_page();
	now_held.is_blocked = false;
	forget_space(server);
	fault_continue(server, now_held.class);
}

void exception_run(struct server *server, uint64_t now)
{
	bool is_there = false;

	if (!now_held.is_blocked)
		return;
	for (unsigned i = 0; i < server->count; i++)
		is_there |= server->list[i].fd >= 0 && server->list[i].pid == now_held.stopped;
	if (!is_there || !process_is_stopped(now_held.stopped)) {
		end(server);
		return;
	}
	if (now_held.event_ns && now >= now_held.event_ns)
		report(server);
	look_for_debugger(server);
	if (now_held.kept_space)
		look_for_space(server);
}

uint64_t exception_next_ns(uint64_t now)
{
	uint64_t look = now + LOOK_MS * 1000000ull;

	if (!now_held.is_blocked)
		return 0;
	return now_held.event_ns && now_held.event_ns < look ? now_held.event_ns : look;
}
