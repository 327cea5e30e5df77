/* SPDX-License-Identifier: MIT */
/* mpsd-sentinel, the watcher: it waits for an SM exception and contains it.  See ../include/mpsd_sentinel.h. */
#include "sentinel.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	SETTLE_MS = 10, /* before RESUME: the clients' descriptors are held by then, and the culprit has seen its error */
	REST_MS = 250,  /* after CONTAINED: the blocks that waited for a place come to the same trap */
	MOST_RESUMES = 100, /* after the first one */
	LAST_PEER_MS = 1000, ALONE_MS = 10000,
	LAST_LOOKS_MS = 500, /* mpsd judges without them a second after FAULT */
};

enum { LISTENER, PEER, SIGNALS, START, EVENT, HOLDERS, SERVER, FIRST_CLIENT };

static struct {
	struct client client;
	struct rm rm;
	struct pollfd polled[FIRST_CLIENT + MPSD_SENTINEL_CLIENTS];
	struct clients clients;
	int holders; /* the end that they write to */
	unsigned looks; /* that they have not reported yet */
	uint32_t exceptions;
	uint64_t pc; /* of the last one */
	bool is_wide; /* the last one: a trap that at least half of the SMs reported */
	unsigned resumes;
	struct mpsd_sentinel_report reports[MPSD_SENTINEL_REPORTS];
	unsigned report_count;
	uint64_t start_end_ns, alone_end_ns, rest_end_ns;
} watcher;

static void close_slot(int slot)
{
	if (watcher.polled[slot].fd >= 0)
		close(watcher.polled[slot].fd);
	watcher.polled[slot].fd = -1;
}

/* A peer that does not read loses its connection; the next one gets every report again. */
static void send_report(const struct mpsd_sentinel_report *report)
{
	if (watcher.polled[PEER].fd >= 0 &&
	    send(watcher.polled[PEER].fd, report, sizeof(*report), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		close_slot(PEER);
}

static void report_now(struct mpsd_sentinel_report report)
{
	report.version = MPSD_SENTINEL_VERSION;
	if (!report.time_ns)
		report.time_ns = now_ns();
	if (watcher.report_count < MPSD_SENTINEL_REPORTS)
		watcher.reports[watcher.report_count++] = report;
	send_report(&report);
}

static void accept_peer(void)
{
	int fd = accept4(watcher.polled[LISTENER].fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	struct ucred peer;
	socklen_t size = sizeof(peer);

	if (fd < 0)
		return;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.uid != geteuid()) {
		close(fd);
		return;
	}
	close_slot(PEER);
	watcher.polled[PEER].fd = fd;
	for (unsigned i = 0; i < watcher.report_count; i++)
		send_report(&watcher.reports[i]);
}

static _Noreturn void leave(int status)
{
	client_kill(&watcher.client);
	client_wait(&watcher.client);
	exit(status);
}

static void hear_holder(void)
{
	struct mpsd_sentinel_report report;

	if (read(watcher.polled[HOLDERS].fd, &report, sizeof(report)) != sizeof(report))
		return;
	watcher.looks -= watcher.looks > 0;
	if (!report.status)
		clients_set_held(&watcher.clients, (pid_t)report.pid);
	report_now(report);
}

/* While this waits, the holders report, so that the culprit is known before the GPU continues. */
static void settle(uint64_t end_ns)
{
	struct pollfd *holders = &watcher.polled[HOLDERS];
	uint64_t now;

	while ((now = now_ns()) < end_ns)
		if (poll(holders, 1, (int)((end_ns - now) / 1000000u + 1)) > 0)
			hear_holder();
	holders->revents = 0;
}

/* Fail to what happens without a sentinel: the client's death lets the server go on.  mpsd may be about to connect.  It has to
 * learn of this before the other clients fail, or it takes the first for the culprit; the driver ends the client after 120 ms.
 * On a busy machine the looks at the clients can come later. */
static _Noreturn void fail(enum mpsd_sentinel_step step, int status)
{
	client_kill(&watcher.client);
	if (watcher.polled[PEER].fd < 0 && poll(&watcher.polled[LISTENER], 1, LAST_PEER_MS) > 0)
		accept_peer();
	report_now((struct mpsd_sentinel_report){ .kind = MPSD_SENTINEL_FAILED, .status = status, .count = step });
	for (int ms = 0; watcher.looks && ms < LAST_LOOKS_MS; ms++)
		settle(now_ns() + 1000000u);
	client_wait(&watcher.client);
	exit(1);
}

static void require(enum mpsd_sentinel_step step, int rc)
{
	if (rc)
		fail(step, rc);
}

static void arm(void)
{
	struct client_context context = { 0 };
	struct rm *rm = &watcher.rm;

	if (read(watcher.client.pipe, &context, sizeof(context)) != sizeof(context))
		fail(MPSD_SENTINEL_AT_START, -ECHILD);
	require(MPSD_SENTINEL_AT_START, context.code);
	close_slot(START);
	require(MPSD_SENTINEL_AT_STOP, client_stop(&watcher.client));
	rm->sms = context.sms;
	require(MPSD_SENTINEL_AT_FIND, rm_open(rm, context.is_simulated));
	require(MPSD_SENTINEL_AT_FIND, rm_find(rm, &watcher.client));
	require(MPSD_SENTINEL_AT_SESSION, rm_open_session(rm));
	require(MPSD_SENTINEL_AT_EVENT, rm_open_event(rm));
	watcher.polled[EVENT].fd = rm->event;
	watcher.start_end_ns = 0;
	report_now((struct mpsd_sentinel_report){ .kind = MPSD_SENTINEL_ARMED, .pid = (uint32_t)watcher.client.pid,
						  .count = rm->sms });
}

static void begin_looks(void)
{
	clients_begin_looks(&watcher.clients, watcher.rm.is_simulated, watcher.holders);
}

static void tell_pc(int place)
{
	int rc = clients_tell_pc(&watcher.clients, place, watcher.pc);

	watcher.looks += rc == 0;
	if (rc)
		report_now((struct mpsd_sentinel_report){ .kind = MPSD_SENTINEL_HOLDS, .status = rc, .pc = watcher.pc,
							  .pid = (uint32_t)watcher.clients.pids[place] });
}

/* One exception can fire several events before RESUME. */
static void take_event(void)
{
	struct pollfd event = { .fd = watcher.rm.event, .events = POLLIN | POLLPRI };

	if (poll(&event, 1, 0) > 0)
		rm_clear_event(&watcher.rm);
}

static void resume(void)
{
	require(MPSD_SENTINEL_AT_RESUME, rm_resume(&watcher.rm));
	report_now((struct mpsd_sentinel_report){ .kind = MPSD_SENTINEL_CONTAINED, .count = ++watcher.resumes });
}

/* No step of this waits for a client, for mpsd or for the vendor's server. */
static void contain_once(uint64_t began_ns, const struct exception *exception)
{
	struct exception more;

	watcher.exceptions++;
	watcher.pc = exception->pc;
	report_now((struct mpsd_sentinel_report){ .kind = MPSD_SENTINEL_FAULT, .status = exception->is_mmu, .time_ns = began_ns,
						  .pc = exception->pc, .warp_esr = exception->warp_esr,
						  .global_esr = exception->global_esr, .count = exception->sms });
	for (int i = 0; i < MPSD_SENTINEL_CLIENTS; i++)
		if (watcher.clients.polled[i].fd >= 0)
			tell_pc(i);
	settle(now_ns() + SETTLE_MS * 1000000ull);
	take_event();
	/* What SMs have reported since: later it would look like another exception. */
	require(MPSD_SENTINEL_AT_READ, rm_read(&watcher.rm, &more));
	if (exception->is_shared || more.is_shared)
		fail(MPSD_SENTINEL_AT_SHARED, 0); /* after RESUME a client would hang, and which one is not known */
	if (watcher.exceptions > 1)
		fail(MPSD_SENTINEL_AT_SECOND, 0); /* the same */
	watcher.is_wide = !exception->pc && !more.pc && 2 * (exception->sms + more.sms) >= watcher.rm.sms;
	watcher.rest_end_ns = now_ns() + REST_MS * 1000000ull;
	resume();
}

/* Without a RESUME after it all clients would hang.  While RM handles a fault of another GPU it can answer 80 ms later; the culprit
 * can end in that time, so it is held before. */
static void contain(void)
{
	uint64_t began_ns = now_ns();
	struct exception exception;

	rm_clear_event(&watcher.rm);
	if (!watcher.exceptions)
		begin_looks();
	require(MPSD_SENTINEL_AT_READ, rm_read(&watcher.rm, &exception));
	if (!exception.sms && watcher.is_wide && began_ns < watcher.rest_end_ns && watcher.resumes <= MOST_RESUMES) {
		resume();
		return;
	}
	begin_looks();
	contain_once(began_ns, &exception);
}

static void hear_signal(void)
{
	struct signalfd_siginfo signal_info;

	if (read(watcher.polled[SIGNALS].fd, &signal_info, sizeof(signal_info)) != sizeof(signal_info))
		return;
	if (signal_info.ssi_signo == SIGTERM)
		leave(0);
	if (client_is_lost(&watcher.client))
		fail(watcher.polled[START].fd >= 0 ? MPSD_SENTINEL_AT_START : MPSD_SENTINEL_AT_END, -ECHILD);
}

/* Takes the pidfd.  mpsd can have sent the request just before the exception; the next mpsd names all clients again. */
static void add_client(pid_t pid, int pidfd)
{
	int place = clients_add(&watcher.clients, pid, pidfd);

	if (place >= 0 && watcher.exceptions) {
		begin_looks();
		tell_pc(place);
	}
}

static void hear_peer(void)
{
	struct mpsd_sentinel_request request;
	int fd, rc = request_receive(watcher.polled[PEER].fd, &request, &fd);

	if (rc == 0)
		return;
	if (rc > 0 && request.op == MPSD_SENTINEL_END && fd < 0) {
		if (request.pid != MPSD_SENTINEL_UNLESS_CONTAINED || !watcher.exceptions)
			leave(0);
	} else if (rc > 0 && request.op == MPSD_SENTINEL_ADD && fd >= 0) {
		add_client((pid_t)request.pid, fd);
	} else if (rc > 0 && request.op == MPSD_SENTINEL_SERVER && fd >= 0) {
		close_slot(SERVER);
		watcher.polled[SERVER].fd = fd;
	} else {
		if (rc > 0 && fd >= 0)
			close(fd);
		close_slot(PEER);
	}
}

/* Once its last client has gone after an exception, the server is useless. */
static void client_ended(int place)
{
	if (clients_remove(&watcher.clients, place) && watcher.exceptions)
		leave(0);
}

/* Without the server nothing can be contained, and the stopped client would stay for ever. */
static void server_ended(void)
{
	leave(0);
}

/* Before it knows its server, its end does not show: without a peer the stopped client would stay for ever. */
static void look_alone(void)
{
	bool is_alone = watcher.polled[START].fd < 0 && watcher.polled[PEER].fd < 0 && watcher.polled[SERVER].fd < 0;

	if (!is_alone)
		watcher.alone_end_ns = 0;
	else if (!watcher.alone_end_ns)
		watcher.alone_end_ns = now_ns() + ALONE_MS * 1000000ull;
	else if (now_ns() >= watcher.alone_end_ns)
		leave(0);
}

static int wait_ms(void)
{
	uint64_t now = now_ns(), end_ns = watcher.start_end_ns ? watcher.start_end_ns : watcher.alone_end_ns;

	if (!end_ns)
		return -1; /* forever: until an exception, a request, or the client's end */
	return now >= end_ns ? 0 : (int)((end_ns - now) / 1000000u + 1);
}

static void run(void)
{
	static void (*const hear[FIRST_CLIENT])(void) = { [LISTENER] = accept_peer, [PEER] = hear_peer, [SIGNALS] = hear_signal,
							 [START] = arm, [EVENT] = contain, [HOLDERS] = hear_holder,
							 [SERVER] = server_ended };
	static const int order[] = { EVENT, HOLDERS, START, SIGNALS, PEER, LISTENER, SERVER };

	for (;;) { /* forever: see wait_ms() */
		int ready;

		look_alone();
		ready = poll(watcher.polled, FIRST_CLIENT + MPSD_SENTINEL_CLIENTS, wait_ms());
		if (ready < 0)
			continue;
		if (ready == 0 && watcher.start_end_ns && now_ns() >= watcher.start_end_ns)
			fail(MPSD_SENTINEL_AT_START, -ETIMEDOUT);
		for (unsigned i = 0; i < sizeof(order) / sizeof(*order); i++)
			if (watcher.polled[order[i]].fd >= 0 && watcher.polled[order[i]].revents)
				hear[order[i]]();
		for (int i = 0; i < MPSD_SENTINEL_CLIENTS; i++)
			if (watcher.clients.polled[i].fd >= 0 && watcher.clients.polled[i].revents)
				client_ended(i);
	}
}

static int open_signals(void)
{
	sigset_t wanted;

	sigemptyset(&wanted);
	sigaddset(&wanted, SIGCHLD);
	sigaddset(&wanted, SIGTERM);
	sigprocmask(SIG_BLOCK, &wanted, NULL);
	signal(SIGPIPE, SIG_IGN); /* of a holder that has ended */
	signal(SIGINT, SIG_IGN); /* typed at mpsd's terminal */
	signal(SIGHUP, SIG_IGN);
	return signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK);
}

static int start(int listener, uid_t uid)
{
	struct rlimit files;
	int ends[2], rc;

	if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
		files.rlim_cur = files.rlim_max; /* the event's descriptor has a high number */
		setrlimit(RLIMIT_NOFILE, &files);
	}
	for (int i = 0; i < FIRST_CLIENT + MPSD_SENTINEL_CLIENTS; i++)
		watcher.polled[i] = (struct pollfd){ .fd = -1, .events = i == EVENT ? POLLIN | POLLPRI : POLLIN };
	watcher.clients.polled = &watcher.polled[FIRST_CLIENT];
	watcher.polled[LISTENER].fd = fcntl(listener, F_DUPFD_CLOEXEC, 3);
	watcher.polled[SIGNALS].fd = open_signals();
	if (watcher.polled[LISTENER].fd < 0 || watcher.polled[SIGNALS].fd < 0 || pipe2(ends, O_CLOEXEC) != 0)
		return -errno;
	if (listener > STDERR_FILENO)
		close(listener);
	else if (dup2(STDOUT_FILENO, listener) < 0) /* mpsd-launcher passes only these on; the number must stay taken */
		return -errno;
	watcher.polled[HOLDERS].fd = ends[0];
	watcher.holders = ends[1];
	rc = client_start(uid, &watcher.client);
	watcher.polled[START].fd = rc ? -1 : watcher.client.pipe;
	watcher.start_end_ns = now_ns() + MPSD_SENTINEL_START_MS * 1000000ull;
	if (!rc)
		report_now((struct mpsd_sentinel_report){ .kind = MPSD_SENTINEL_STARTED, .pid = (uint32_t)watcher.client.pid,
								  .count = (uint32_t)getpid() });
	return rc;
}

int main(int argc, char **argv)
{
	bool has_uid = argc == 5 && strcmp(argv[3], "--uid") == 0;
	int rc;

	if (argc == 3 && strcmp(argv[1], "--trial") == 0)
		return trial_run(argv[2]);
	if ((argc != 3 && !has_uid) || strcmp(argv[1], "--fd") != 0) {
		fprintf(stderr, "usage: mpsd-sentinel --fd N [--uid UID]; mpsd-sentinel --trial count|trap\n");
		return 2;
	}
	rc = start(atoi(argv[2]), has_uid ? (uid_t)strtoul(argv[4], NULL, 10) : geteuid());
	if (!rc)
		run();
	fprintf(stderr, "mpsd-sentinel: cannot start: %s\n", strerror(-rc));
	return 2;
}
