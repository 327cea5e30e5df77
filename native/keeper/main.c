/* SPDX-License-Identifier: MIT */
/* mpsd-keeper: holds descriptors for mpsd and outlives it.  See ../include/mpsd_keeper.h. */
#include "keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAX_DEFAULT 4096
#define MAX_MOST (1 << 20) /* the kernel's own default bound on descriptors */
#define LISTENER_FD 3
/* Descriptors in addition to those held for mpsd: standard ones, listener, peers, a reply's copy for each, one being accepted,
 * one being received, the notify socket and its barrier. */
#define OWN_DESCRIPTORS (4 + 2 * MPSD_KEEPER_PEERS + 2 + 3)

static volatile sig_atomic_t asked_to_end;

struct arguments {
	int fd;
	uint32_t max;
};

int64_t keeper_now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void on_term(int number)
{
	(void)number;
	asked_to_end = 1;
}

static _Noreturn void cannot_start(const char *what, const char *why)
{
	fprintf(stderr, "mpsd-keeper: cannot start: %s: %s\n", what, why);
	exit(2);
}

static long parse_number(const char *option, const char *text, long least, long most)
{
	char *end;
	long number;

	errno = 0;
	number = text ? strtol(text, &end, 10) : 0;
	if (!text || end == text || *end || errno || number < least || number > most)
		cannot_start(option, "a number was expected, or it is out of range");
	return number;
}

static struct arguments parse_arguments(int argc, char **argv)
{
	struct arguments out = { LISTENER_FD, MAX_DEFAULT };

	for (int i = 1; i < argc; i += 2) {
		const char *value = i + 1 < argc ? argv[i + 1] : NULL;

		if (strcmp(argv[i], "--fd") == 0)
			out.fd = (int)parse_number("--fd", value, LISTENER_FD, 1 << 30);
		else if (strcmp(argv[i], "--max") == 0)
			out.max = (uint32_t)parse_number("--max", value, 1, MAX_MOST);
		else
			cannot_start(argv[i], "usage: mpsd-keeper [--fd N] [--max N]");
	}
	return out;
}

static int socket_option(int fd, int name)
{
	int value = -1;
	socklen_t size = sizeof(value);

	return getsockopt(fd, SOL_SOCKET, name, &value, &size) == 0 ? value : -1;
}

static void take_listener(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	if (flags < 0)
		cannot_start("--fd", strerror(errno));
	if (socket_option(fd, SO_DOMAIN) != AF_UNIX || socket_option(fd, SO_TYPE) != SOCK_SEQPACKET ||
	    socket_option(fd, SO_ACCEPTCONN) != 1)
		cannot_start("--fd", "not a listening AF_UNIX SOCK_SEQPACKET socket");
	if (fd != LISTENER_FD && dup2(fd, LISTENER_FD) < 0)
		cannot_start("dup2", strerror(errno));
	fcntl(LISTENER_FD, F_SETFD, FD_CLOEXEC);
	fcntl(LISTENER_FD, F_SETFL, flags | O_NONBLOCK);
}

/* Raises RLIMIT_NOFILE as far as it is allowed.  How many descriptors may be held, `wanted` at most. */
static uint32_t make_room(uint32_t wanted)
{
	struct rlimit limit, more;

	if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
		cannot_start("getrlimit", strerror(errno));
	more.rlim_cur = (rlim_t)wanted + OWN_DESCRIPTORS;
	more.rlim_max = more.rlim_cur > limit.rlim_max ? more.rlim_cur : limit.rlim_max;
	if (limit.rlim_cur < more.rlim_cur && setrlimit(RLIMIT_NOFILE, &more) != 0) {
		more = (struct rlimit){ limit.rlim_max, limit.rlim_max };
		setrlimit(RLIMIT_NOFILE, &more);
	}
	getrlimit(RLIMIT_NOFILE, &limit);
	if (limit.rlim_cur <= OWN_DESCRIPTORS)
		cannot_start("RLIMIT_NOFILE", "too low");
	limit.rlim_cur -= OWN_DESCRIPTORS;
	return limit.rlim_cur < wanted ? (uint32_t)limit.rlim_cur : wanted;
}

/* Lets go of everything of the parent's: its terminal, directory, pipes and descriptors. */
static void detach(void)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	for (int fd = 0; fd < LISTENER_FD; fd++) {
		if (null >= 0)
			dup3(null, fd, O_CLOEXEC);
		else
			close(fd);
	}
	if (syscall(SYS_close_range, LISTENER_FD + 1, ~0U, 0) != 0)
		for (long fd = LISTENER_FD + 1, end = sysconf(_SC_OPEN_MAX); fd < end; fd++)
			close((int)fd); /* Linux before 5.9 */
	setsid(); /* fails where it leads a session already */
	if (chdir("/") != 0)
		return; /* then it stays */
}

/* SIGTERM comes only while poll() waits.  *unblocked: the mask for then. */
static void set_signals(sigset_t *unblocked)
{
	struct sigaction on_end = { .sa_handler = on_term };
	sigset_t term;

	signal(SIGHUP, SIG_IGN);
	signal(SIGINT, SIG_IGN); /* typed at mpsd's terminal */
	signal(SIGPIPE, SIG_IGN);
	sigaction(SIGTERM, &on_end, NULL);
	sigemptyset(&term);
	sigaddset(&term, SIGTERM);
	sigprocmask(SIG_BLOCK, &term, unblocked);
	sigdelset(unblocked, SIGTERM);
}

/* Until STOP or SIGTERM. */
static void run(struct protocol *protocol, struct peers *peers, const sigset_t *unblocked)
{
	while (!peers->stop) {
		struct pollfd events[PEERS_EVENTS];
		int left = peers_watch(peers, events);
		struct timespec timeout = { left / 1000, left % 1000 * 1000000L };

		if (ppoll(events, PEERS_EVENTS, left < 0 ? NULL : &timeout, unblocked) < 0)
			memset(events, 0, sizeof(events)); /* EINTR, ENOMEM: only the deadlines are looked at */
		if (asked_to_end)
			return;
		peers_serve(peers, protocol, events);
	}
}

int main(int argc, char **argv)
{
	static struct protocol protocol;
	static struct peers peers;
	struct arguments arguments = parse_arguments(argc, argv);
	struct timespec now;
	sigset_t unblocked;

	take_listener(arguments.fd);
	protocol.table.max = make_room(arguments.max);
	detach();
	set_signals(&unblocked);
	clock_gettime(CLOCK_BOOTTIME, &now);
	protocol.stat.pid = (uint32_t)getpid();
	protocol.stat.peers_max = MPSD_KEEPER_PEERS;
	protocol.stat.started_ns = (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
	peers_init(&peers, LISTENER_FD);
	run(&protocol, &peers, &unblocked);
	table_clear(&protocol.table);
	return 0;
}
