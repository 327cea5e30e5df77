/* SPDX-License-Identifier: MIT */
/* mpsd-inspector: reads other processes for mpsd, in a child that can be killed, or itself.  See ../include/mpsd_inspector.h. */
#include "inspector.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_DEADLINE_MS 60000
#define MOST_FDS (1 + MOST_PASSED) /* the answer's socket first */

struct child {
	pid_t pid; /* 0: a free place */
	uint32_t uid;
};

/* Those that open files of cgroups, which no signal may end, have the second half. */
static struct child children[2 * MPSD_INSPECTOR_MOST];

static void on_child(int number)
{
	(void)number; /* ends ppoll */
}

static void reap(void)
{
	pid_t pid;

	while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
		for (int i = 0; i < 2 * MPSD_INSPECTOR_MOST; i++)
			if (children[i].pid == pid)
				children[i].pid = 0;
}

static uint32_t count_children(void)
{
	uint32_t count = 0;

	for (int i = 0; i < 2 * MPSD_INSPECTOR_MOST; i++)
		count += children[i].pid != 0;
	return count;
}

static bool opens_cgroup(uint32_t op)
{
	return op == MPSD_INSPECTOR_FROZEN || op == MPSD_INSPECTOR_FREEZER || op == MPSD_INSPECTOR_FREEZE ||
	       op == MPSD_INSPECTOR_THAW || op == MPSD_INSPECTOR_PROCESSES;
}

/* Return a free place for a child of `uid`, or NULL. Children that cannot be killed stay as long as their users like: even if
 * those of some users fill the common places, each other user still gets one. Those that open files of cgroups leave the other
 * reads all their places. */
static struct child *find_place(uint32_t uid, bool is_for_cgroup)
{
	struct child *of_kind = children + is_for_cgroup * MPSD_INSPECTOR_MOST, *place = NULL;
	int of_uid = 0, count = 0, share = is_for_cgroup ? MPSD_INSPECTOR_CGROUP_SHARE : MPSD_INSPECTOR_SHARE;

	for (int i = 0; i < MPSD_INSPECTOR_MOST; i++) {
		if (!of_kind[i].pid) {
			place = &of_kind[i];
			continue;
		}
		count++;
		of_uid += of_kind[i].uid == uid;
	}
	if (of_uid >= share || (of_uid && count >= MPSD_INSPECTOR_MOST - MPSD_INSPECTOR_FIRST))
		return NULL;
	return place;
}

int question_parse(const char *datagram, size_t size, struct question *out)
{
	const struct mpsd_inspector_request *head = &out->head;
	size_t pairs_size;

	if (size < sizeof(out->head))
		return 0;
	memcpy(&out->head, datagram, sizeof(out->head));
	if (head->version != MPSD_INSPECTOR_VERSION || head->op >= MPSD_INSPECTOR_OPS || head->reserved ||
	    !head->deadline_ms || head->deadline_ms > MAX_DEADLINE_MS || head->pairs > MPSD_INSPECTOR_PAIRS)
		return 0;
	pairs_size = head->pairs * sizeof(*out->pairs);
	if (size - sizeof(out->head) < pairs_size)
		return 0;
	out->pairs = (const struct mpsd_inspector_pair *)(const void *)(datagram + sizeof(out->head));
	out->words = datagram + sizeof(out->head) + pairs_size;
	out->words_size = size - sizeof(out->head) - pairs_size;
	return !out->words_size || !out->words[out->words_size - 1];
}

/* Send head, payload and descriptors as one datagram; never blocks.  False if the peer has gone. */
static bool send_reply(int end, struct reply *reply)
{
	struct iovec parts[2] = { { &reply->head, sizeof(reply->head) }, { reply->payload, reply->size } };
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(sizeof(reply->taken))];
	} control = { 0 };
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };

	if (reply->taken_count) {
		size_t size = (size_t)reply->taken_count * sizeof(int);

		message.msg_control = control.space;
		message.msg_controllen = CMSG_SPACE(size);
		control.align.cmsg_level = SOL_SOCKET;
		control.align.cmsg_type = SCM_RIGHTS;
		control.align.cmsg_len = CMSG_LEN(size);
		memcpy(CMSG_DATA(&control.align), reply->taken, size);
	}
	return sendmsg(end, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
}

bool send_status(int end, int status, uint32_t count)
{
	static struct reply reply;

	reply.head = (struct mpsd_inspector_answer){ status, count };
	return send_reply(end, &reply);
}

/* Fill the reply: with what was asked for, or with the reason why not. */
static void read_process(const struct question *question, struct reply *out)
{
	static int (*const reads[MPSD_INSPECTOR_OPS])(const struct question *, struct reply *) = {
		[MPSD_INSPECTOR_FACTS] = facts_read,    [MPSD_INSPECTOR_MAPS] = maps_read,
		[MPSD_INSPECTOR_SAME] = descriptors_compare, [MPSD_INSPECTOR_TAKE] = descriptors_take,
		[MPSD_INSPECTOR_STAT] = stat_read,      [MPSD_INSPECTOR_FILE] = file_read,
		[MPSD_INSPECTOR_SPACES] = spaces_read,  [MPSD_INSPECTOR_FIND] = descriptors_find,
		[MPSD_INSPECTOR_CGROUP] = cgroup_read,  [MPSD_INSPECTOR_FROZEN] = frozen_read,
		[MPSD_INSPECTOR_FREEZER] = freezer_read, [MPSD_INSPECTOR_FREEZE] = freeze_write,
		[MPSD_INSPECTOR_THAW] = thaw_write,     [MPSD_INSPECTOR_PROCESSES] = processes_read,
		[MPSD_INSPECTOR_PATHS] = paths_read,    [MPSD_INSPECTOR_TEXT] = text_read,
		[MPSD_INSPECTOR_CHILDREN] = children_read, [MPSD_INSPECTOR_THREADS_OF] = threads_read,
	};
	int needs_pidfd = question->head.op == MPSD_INSPECTOR_TAKE;
	int rc = -EINVAL;

	out->head = (struct mpsd_inspector_answer){ 0, 0 };
	out->size = 0;
	out->taken_count = 0;
	out->frozen = -1;
	if (reads[question->head.op] && (!needs_pidfd || question->passed[0] >= 0))
		rc = reads[question->head.op](question, out);
	if (rc) {
		out->head = (struct mpsd_inspector_answer){ rc, 0 };
		out->size = 0;
		out->taken_count = 0;
	}
}

/* Receive a request, read by itself, and answer.  0 when mpsd has closed its end. */
static int serve_next_directly(void)
{
	static _Alignas(8) char datagram[MPSD_INSPECTOR_DATAGRAM];
	static struct reply reply;
	struct question question = { .passed = { -1, -1, -1, -1 } };
	ssize_t size = recv(REQUESTS_FD, datagram, sizeof(datagram), MSG_TRUNC);

	if (size < 0)
		return errno == EINTR;
	if (size == 0)
		return 0;
	if ((size_t)size > sizeof(datagram) || !question_parse(datagram, (size_t)size, &question)) {
		send_status(REQUESTS_FD, -EINVAL, 0);
		return 1;
	}
	read_process(&question, &reply);
	send_reply(REQUESTS_FD, &reply);
	return 1;
}

/* mpsd waits for each answer, on its event loop: a busy machine must not keep this process from running. Needs CAP_SYS_NICE. */
static void run_first(void)
{
	struct sched_param priority = { .sched_priority = sched_get_priority_min(SCHED_RR) };

	if (sched_setscheduler(0, SCHED_RR, &priority) != 0)
		setpriority(PRIO_PROCESS, 0, -20);
}

/* mpsd sees in its status whether this process waits. mpsd may not look it up: a user can hold the directory of this process too. */
static void send_own_status(void)
{
	static struct reply reply;
	int status = open("/proc/self/status", O_RDONLY | O_CLOEXEC);

	reply.head.status = status < 0 ? -errno : 0;
	reply.taken[0] = status;
	reply.taken_count = status >= 0;
	send_reply(REQUESTS_FD, &reply);
	if (status >= 0)
		close(status);
}

static void serve_directly(void)
{
	run_first();
	spaces_prepare();
	send_own_status();
	while (serve_next_directly())
		;
}

/* In a child: its timer's signal has its default action, which also ends a wait for a lock that is killable. */
static _Noreturn void answer(const struct question *question, int end)
{
	static struct reply reply;
	struct itimerval timer = { .it_value = { question->head.deadline_ms / 1000,
						 question->head.deadline_ms % 1000 * 1000 } };
	sigset_t none;

	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGCHLD, SIG_DFL);
	setitimer(ITIMER_REAL, &timer, NULL);
	read_process(question, &reply);
	if (!send_reply(end, &reply))
		freeze_undo(&reply);
	_exit(0);
}

static void serve(const struct question *question, int end)
{
	struct child *place;
	pid_t pid;

	reap();
	if (question->head.op == MPSD_INSPECTOR_PING) {
		send_status(end, 0, count_children());
		return;
	}
	if (question->head.op == MPSD_INSPECTOR_READER || question->head.op == MPSD_INSPECTOR_RUN) {
		int rc = question->head.op == MPSD_INSPECTOR_RUN ? program_start(question, end) : reader_start(end, serve_directly);

		if (rc)
			send_status(end, rc, 0);
		return;
	}
	place = find_place(question->head.uid, opens_cgroup(question->head.op));
	if (!place) {
		send_status(end, -EBUSY, count_children());
		return;
	}
	pid = fork();
	if (pid == 0)
		answer(question, end);
	if (pid < 0)
		send_status(end, -errno, count_children());
	else
		*place = (struct child){ pid, question->head.uid };
}

/* The descriptors that came with a request, close-on-exec; -1 where none did. */
static void take_descriptors(struct msghdr *message, int found[MOST_FDS])
{
	for (int i = 0; i < MOST_FDS; i++)
		found[i] = -1;
	for (struct cmsghdr *each = CMSG_FIRSTHDR(message); each; each = CMSG_NXTHDR(message, each))
		if (each->cmsg_level == SOL_SOCKET && each->cmsg_type == SCM_RIGHTS && each->cmsg_len <= CMSG_LEN(MOST_FDS * sizeof(int)))
			memcpy(found, CMSG_DATA(each), each->cmsg_len - CMSG_LEN(0));
}

/* Receive and serve one request.  0 when mpsd has closed its end. */
static int serve_next(void)
{
	static _Alignas(8) char datagram[MPSD_INSPECTOR_DATAGRAM];
	struct iovec part = { datagram, sizeof(datagram) };
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(MOST_FDS * sizeof(int))];
	} control;
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.space,
				  .msg_controllen = sizeof(control.space) };
	ssize_t size = recvmsg(REQUESTS_FD, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	struct question question;
	int found[MOST_FDS], end;

	if (size < 0)
		return errno == EAGAIN || errno == EINTR;
	if (size == 0)
		return 0;
	take_descriptors(&message, found);
	end = found[0];
	memcpy(question.passed, found + 1, sizeof(question.passed));
	if (end >= 0 && !(message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) && question_parse(datagram, (size_t)size, &question))
		serve(&question, end);
	else if (end >= 0)
		send_status(end, -EINVAL, 0);
	for (int i = 0; i < MOST_FDS; i++)
		if (found[i] >= 0)
			close(found[i]);
	return 1;
}

/* Let go of everything of mpsd's but the socket and the standard descriptors. */
static void detach(int fd)
{
	if (fd != REQUESTS_FD && dup2(fd, REQUESTS_FD) < 0)
		exit(2);
	if (syscall(SYS_close_range, REQUESTS_FD + 1, ~0U, 0) != 0)
		for (long each = REQUESTS_FD + 1, last = sysconf(_SC_OPEN_MAX); each < last; each++)
			close((int)each); /* Linux before 5.9 */
	setsid(); /* fails where it leads a session already */
	if (chdir("/") != 0)
		exit(2);
}

static void serve_in_children(void)
{
	struct sigaction on_end = { .sa_handler = on_child };
	struct pollfd events = { .fd = REQUESTS_FD, .events = POLLIN };
	sigset_t blocked, unblocked;

	sigaction(SIGCHLD, &on_end, NULL);
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGCHLD);
	sigprocmask(SIG_BLOCK, &blocked, &unblocked);
	sigdelset(&unblocked, SIGCHLD);
	for (;;) {
		if (ppoll(&events, 1, NULL, &unblocked) < 0)
			reap();
		else if (!serve_next())
			return;
	}
}

int main(int argc, char **argv)
{
	int is_direct = argc == 3 && strcmp(argv[1], "--direct") == 0;

	if (argc != 3 || (!is_direct && strcmp(argv[1], "--fd") != 0)) {
		fprintf(stderr, "usage: mpsd-inspector --fd N | --direct N\n");
		return 2;
	}
	detach(atoi(argv[2]));
	signal(SIGINT, SIG_IGN); /* typed at mpsd's terminal */
	signal(SIGHUP, SIG_IGN);
	mlockall(MCL_CURRENT); /* mpsd waits for a second at most: less than a busy disk takes to bring reclaimed pages back */
	if (is_direct)
		serve_directly();
	else
		serve_in_children();
	return 0;
}
