/* pollers WORKERS EACH SECONDS PROGRAM COMMAND ANSWER [COMMAND ANSWER ...]
 *
 * WORKERS processes at once; each runs PROGRAM EACH times, one COMMAND after the other on its standard input, and compares
 * what comes out with the ANSWER.  After SECONDS no more are sent; one that answers nothing for 20 s is killed.  Prints what
 * was counted, as JSON.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { HANG_MS = 20000, ANSWER_BYTES = 65536 };

extern char **environ;

struct counts {
	uint64_t sent, failed, wrong, hung;
};

struct job {
	unsigned workers, each;
	double seconds;
	char *program;
	char **questions; /* pairs */
	unsigned question_count;
	struct counts *counts; /* one a worker; shared */
	float *ms;             /* one a command; shared; 0: not sent */
	double start;
};

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void *shared(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED) {
		perror("mmap");
		exit(2);
	}
	return p;
}

/* Bytes read until the end of the stream; -1: nothing came for too long. */
static ssize_t read_all(int fd, char *buffer)
{
	struct pollfd wait = { .fd = fd, .events = POLLIN };
	size_t filled = 0;

	for (;;) {
		ssize_t n;

		if (poll(&wait, 1, HANG_MS) == 0)
			return -1;
		n = read(fd, buffer + filled, ANSWER_BYTES - filled);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return (ssize_t)filled;
		filled += (size_t)n;
	}
}

/* Returns the pid; *in and *out are our ends of its streams. Exits if the program cannot be started: that is not
 * measured. */
static pid_t start(const struct job *job, int *in, int *out)
{
	char *argv[] = { job->program, NULL };
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attributes;
	sigset_t usual;
	int typed[2], said[2], error;
	pid_t pid;

	if (pipe2(typed, O_CLOEXEC) || pipe2(said, O_CLOEXEC)) {
		perror("pipe2");
		_exit(2);
	}
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, typed[0], 0);
	posix_spawn_file_actions_adddup2(&actions, said[1], 1);
	sigemptyset(&usual);
	sigaddset(&usual, SIGPIPE); /* ours is ignored */
	posix_spawnattr_init(&attributes);
	posix_spawnattr_setsigdefault(&attributes, &usual);
	posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
	error = posix_spawn(&pid, job->program, &actions, &attributes, argv, environ);
	if (error) {
		fprintf(stderr, "%s: %s\n", job->program, strerror(error));
		_exit(2);
	}
	posix_spawn_file_actions_destroy(&actions);
	posix_spawnattr_destroy(&attributes);
	close(typed[0]);
	close(said[1]);
	*in = typed[1];
	*out = said[0];
	return pid;
}

static void ask(const struct job *job, struct counts *counts, const char *command, const char *answer)
{
	static char said[ANSWER_BYTES];
	int in, out, status;
	pid_t pid = start(job, &in, &out);
	ssize_t length;

	if (write(in, command, strlen(command)) < 0 || write(in, "\n", 1) < 0)
		perror("write");
	close(in);
	length = read_all(out, said);
	if (length < 0)
		kill(pid, SIGKILL);
	close(out);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	counts->sent++;
	if (length < 0)
		counts->hung++;
	else if (!WIFEXITED(status) || WEXITSTATUS(status))
		counts->failed++;
	else if ((size_t)length != strlen(answer) || memcmp(said, answer, (size_t)length) != 0)
		counts->wrong++;
}

static void work(const struct job *job, unsigned worker)
{
	struct counts *counts = &job->counts[worker];

	while (now() < job->start) /* all begin at once */
		usleep(200);
	for (unsigned i = 0; i < job->each && now() < job->start + job->seconds; i++) {
		unsigned which = (i + worker) % job->question_count;
		double before = now();

		ask(job, counts, job->questions[2 * which], job->questions[2 * which + 1]);
		job->ms[(size_t)worker * job->each + i] = (float)((now() - before) * 1e3);
	}
	_exit(0);
}

static int by_size(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return (x > y) - (x < y);
}

static void report(const struct job *job, double seconds)
{
	size_t planned = (size_t)job->workers * job->each;
	struct counts all = { 0 };
	float *sent;

	for (unsigned i = 0; i < job->workers; i++) {
		all.sent += job->counts[i].sent;
		all.failed += job->counts[i].failed;
		all.wrong += job->counts[i].wrong;
		all.hung += job->counts[i].hung;
	}
	qsort(job->ms, planned, sizeof(*job->ms), by_size);
	sent = job->ms + (planned - all.sent); /* those not sent are 0, and so come first */
	printf("{\"commands\": %llu, \"failed\": %llu, \"wrong\": %llu, \"hung\": %llu, \"not_sent\": %llu, \"seconds\": %.3f, "
	       "\"per_second\": %.1f, \"p50_ms\": %.3f, \"p99_ms\": %.3f, \"max_ms\": %.3f}\n",
	       (unsigned long long)all.sent, (unsigned long long)all.failed, (unsigned long long)all.wrong,
	       (unsigned long long)all.hung, (unsigned long long)(planned - all.sent), seconds, (double)all.sent / seconds,
	       all.sent ? sent[all.sent / 2] : 0, all.sent ? sent[all.sent * 99 / 100] : 0, all.sent ? sent[all.sent - 1] : 0);
}

int main(int argc, char **argv)
{
	struct job job;
	int status, result = 0;

	if (argc < 7 || argc % 2 == 0) {
		fprintf(stderr, "usage: pollers WORKERS EACH SECONDS PROGRAM COMMAND ANSWER [COMMAND ANSWER ...]\n");
		return 2;
	}
	signal(SIGPIPE, SIG_IGN);
	job = (struct job){ .workers = (unsigned)atoi(argv[1]), .each = (unsigned)atoi(argv[2]), .seconds = atof(argv[3]),
			    .program = argv[4], .questions = argv + 5, .question_count = (unsigned)(argc - 5) / 2 };
	job.counts = shared(job.workers * sizeof(*job.counts));
	job.ms = shared((size_t)job.workers * job.each * sizeof(*job.ms));
	job.start = now() + 0.05;
	for (unsigned i = 0; i < job.workers; i++)
		if (fork() == 0)
			work(&job, i);
	while (wait(&status) > 0 || errno == EINTR)
		if (!WIFEXITED(status) || WEXITSTATUS(status))
			result = 1;
	report(&job, now() - job.start);
	return result;
}
