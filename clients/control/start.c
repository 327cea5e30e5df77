/* SPDX-License-Identifier: MIT */
/* Start: -f becomes the daemon; -d starts one in the background and waits for its start report.
 *
 * The report comes over a pipe with its other end in the daemon alone: "RC
 * " and text for stdout. A process that fails earlier writes the same, so one function reports every outcome. */
#include "control.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define READY_FD 3
#define READY_BYTES 8192  /* of the daemon's word; a longer text is cut */
#define READY_REST_MS 2000 /* for the text after the status: the daemon writes both at once */

static const char cannot_start[] = "Cannot start the MPS control daemon";

/* Only ever takes write permission for others away: the logs of a daemon with umask 0 were anybody's. */
static void tighten_umask(void)
{
	mode_t had = umask(022);

	umask((had | 022) & 077);
}

/* argv of the daemon; `words` holds at least 12 and borrows from both. */
static void fill_arguments(const struct options *options, const struct interpreter *interpreter, char **words)
{
	bool background = options->mode == OPTIONS_BACKGROUND;

	*words++ = (char *)interpreter->argv0;
	*words++ = "-I";
	*words++ = "-m";
	*words++ = "mpsd";
	*words++ = "serve";
	*words++ = background ? "--background" : "--foreground";
	if (options->multiuser_server)
		*words++ = "--multiuser-server";
	if (options->ready_devices)
		*words++ = "--ready-devices";
	if (options->static_partitioning)
		*words++ = "--static-partitioning";
	if (background) {
		*words++ = "--ready-fd";
		*words++ = "3"; /* READY_FD */
	}
	*words = NULL;
}

static void close_from(unsigned int first)
{
	if (syscall(SYS_close_range, first, ~0U, 0) == 0)
		return;
	for (long fd = first, limit = sysconf(_SC_OPEN_MAX); fd < limit; fd++) /* Linux before 5.9 */
		close((int)fd);
}

/* The vendor's daemon keeps its directory; ours leaves it, so that it can be unmounted, unless a
 * relative directory variable means something there. */
static void leave_directory(void)
{
	if (control_directory("CUDA_MPS_PIPE_DIRECTORY", CONTROL_PIPE_DIRECTORY)[0] == '/' &&
	    control_directory("CUDA_MPS_LOG_DIRECTORY", CONTROL_LOG_DIRECTORY)[0] == '/')
		if (chdir("/") != 0)
			return; /* then it stays where it is */
}

static void reset_signals(void)
{
	sigset_t none;

	for (int number = 1; number < NSIG; number++)
		signal(number, SIG_DFL); /* some cannot be set, and some are not ours: no matter */
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Context: the daemon to be.  Writes the word that the daemon could not. */
static _Noreturn void fail_ready(int ready, const char *what, int why)
{
	dprintf(ready, "1\n%s: %s: %s\n", cannot_start, what, strerror(why));
	_exit(1);
}

/* Context: the grandchild.  Takes `ready`.  After it nothing of the caller's is open. */
static _Noreturn void become_daemon(const struct interpreter *interpreter, char **words, int ready)
{
	int null = open("/dev/null", O_RDWR);

	if (null < 0)
		fail_ready(ready, "/dev/null", errno);
	for (int fd = 0; fd < READY_FD; fd++)
		dup2(null, fd);
	dup2(ready, READY_FD); /* another number: the pipe's first end is lower than `ready` and over 2 */
	close_from(READY_FD + 1);
	tighten_umask();
	reset_signals();
	leave_directory();
	execv(interpreter->path, words);
	fail_ready(READY_FD, interpreter->path, errno);
}

/* Forks twice: the daemon is in a new session, does not lead it, and is a child of init. */
static int fork_daemon(const struct interpreter *interpreter, char **words, int ready)
{
	pid_t between = fork();

	if (between < 0)
		return -errno;
	if (between == 0) {
		pid_t daemon;

		setsid();
		daemon = fork();
		if (daemon < 0)
			fail_ready(ready, "fork", errno);
		if (daemon == 0)
			become_daemon(interpreter, words, ready);
		_exit(0);
	}
	while (waitpid(between, NULL, 0) < 0 && errno == EINTR) /* it only forks */
		;
	return 0;
}

/* Reads until the end, or until a status and the text that follows it have come. Returns the number of bytes; -ETIMEDOUT. */
static ssize_t read_ready(int ready, char *text, size_t size)
{
	int64_t until = control_now_ms() + MPSD_WAIT_SECONDS * 1000;
	size_t length = 0;
	bool has_status = false;

	while (length < size) {
		struct pollfd event = { .fd = ready, .events = POLLIN };
		int64_t left = until - control_now_ms();
		ssize_t count;
		int found = poll(&event, 1, left > 0 ? (int)left : 0);

		if (found == 0)
			return has_status ? (ssize_t)length : -ETIMEDOUT;
		if (found < 0)
			continue; /* EINTR; the deadline stands */
		count = read(ready, text + length, size - length);
		if (count == 0)
			break;
		if (count < 0)
			continue;
		length += (size_t)count;
		if (!has_status && memchr(text, '\n', length)) {
			has_status = true;
			until = control_now_ms() + READY_REST_MS;
		}
	}
	return (ssize_t)length;
}

/* Prints the daemon's text and returns its status. */
static int report(const char *text, ssize_t length)
{
	struct output output = { 0 };
	const char *log = control_directory("CUDA_MPS_LOG_DIRECTORY", CONTROL_LOG_DIRECTORY);
	const char *end = length > 0 ? memchr(text, '\n', (size_t)length) : NULL;
	int status = 0;

	if (length == -ETIMEDOUT) {
		output_say(&output, STDOUT_FILENO, "%s: no word from it within %d seconds; it may still come up, see %s/mpsd.log\n",
			    cannot_start, MPSD_WAIT_SECONDS, log);
		return 1;
	}
	for (const char *digit = text; end && digit < end; digit++) {
		if (*digit < '0' || *digit > '9' || status > 255)
			end = NULL;
		else
			status = status * 10 + (*digit - '0');
	}
	if (!end || end == text || status > 255) {
		output_say(&output, STDOUT_FILENO, "%s: it ended without a word; see %s/mpsd.log\n", cannot_start, log);
		return 1;
	}
	output_write(&output, STDOUT_FILENO, end + 1, (size_t)(text + length - end - 1));
	return status;
}

static int start_background(const struct interpreter *interpreter, char **words)
{
	char text[READY_BYTES];
	int ends[2];
	ssize_t length;
	int rc;

	if (pipe2(ends, O_CLOEXEC) != 0) {
		printf("%s: pipe: %s\n", cannot_start, strerror(errno));
		return 1;
	}
	rc = fork_daemon(interpreter, words, ends[1]);
	close(ends[1]);
	if (rc) {
		printf("%s: fork: %s\n", cannot_start, strerror(-rc));
		return 1;
	}
	length = read_ready(ends[0], text, sizeof(text));
	close(ends[0]);
	return report(text, length);
}

/* The exit status; with -f it returns only if the daemon could not be run. */
int start_daemon(const struct options *options)
{
	struct interpreter interpreter;
	char *words[12];
	char why[3 * INTERPRETER_PATH_BYTES];
	int rc = behalf_clean(why, sizeof(why));

	if (rc) {
		printf("%s: %s\n", cannot_start, why);
		return 1;
	}
	rc = interpreter_find(&interpreter, why, sizeof(why));
	if (rc) {
		printf("%s: no Python interpreter: %s\n", cannot_start, why);
		return 1;
	}
	fill_arguments(options, &interpreter, words);
	if (options->mode == OPTIONS_BACKGROUND)
		return start_background(&interpreter, words);
	tighten_umask();
	execv(interpreter.path, words);
	printf("%s: %s: %s\n", cannot_start, interpreter.path, strerror(errno));
	return 1;
}
