/* SPDX-License-Identifier: MIT */
/* nvidia-cuda-mps-control: the front end of mpsd.  Small and static, so that a command costs no interpreter. */
#include "control.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

const char *control_directory(const char *variable, const char *otherwise)
{
	const char *value = getenv(variable);

	return value && *value ? value : otherwise;
}

int64_t control_now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* A socket or pipe of this program that became descriptor 1 would receive its output. */
static void fill_standard_descriptors(void)
{
	int fd;

	do
		fd = open("/dev/null", O_RDWR);
	while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd >= 0)
		close(fd);
}

static int run_line(void *context, const char *text, uint64_t length)
{
	struct session *session = context;

	if (length <= LINES_LIMIT)
		return session_run(session, text, (size_t)length);
	output_say(&session->output, STDOUT_FILENO, "Command of %" PRIu64 " bytes is longer than the limit of %d bytes\n",
		    length, LINES_LIMIT);
	session->status = 1; /* the command was not carried out, and the daemon never saw it */
	return 0;
}

/* The arguments are one command. */
static void run_arguments(struct session *session, struct lines *lines, char **words)
{
	for (; *words; words++) {
		if (lines_feed(lines, *words, strlen(*words), run_line, session))
			return;
		if (lines_feed(lines, words[1] ? " " : "\n", 1, run_line, session))
			return;
	}
}

/* Forever: a person at a terminal may take any time. */
static void run_stdin(struct session *session, struct lines *lines)
{
	char bytes[LINES_LIMIT];

	for (;;) {
		ssize_t count = read(STDIN_FILENO, bytes, sizeof(bytes));

		if (count < 0 && errno == EAGAIN) { /* someone else made it non-blocking */
			struct pollfd event = { .fd = STDIN_FILENO, .events = POLLIN };

			poll(&event, 1, -1);
		} else if (count < 0 && errno != EINTR) {
			output_say(&session->output, STDERR_FILENO, "Cannot read stdin: %s\n", strerror(errno));
			session->status = 1;
			return;
		} else if (count == 0) {
			lines_finish(lines, run_line, session);
			return;
		} else if (count > 0 && lines_feed(lines, bytes, (size_t)count, run_line, session)) {
			return;
		}
	}
}

static int run_commands(const struct options *options)
{
	static struct lines lines; /* zero */
	struct session session;

	signal(SIGPIPE, SIG_IGN); /* a reader that leaves must not keep the commands from the daemon */
	if (session_open(&session, control_directory("CUDA_MPS_PIPE_DIRECTORY", CONTROL_PIPE_DIRECTORY)) == 0) {
		if (options->command)
			run_arguments(&session, &lines, options->command);
		else
			run_stdin(&session, &lines);
	}
	return session_close(&session);
}

int main(int argc, char **argv)
{
	struct options options;

	fill_standard_descriptors();
	options_parse(argc, argv, &options);
	switch (options.mode) {
	case OPTIONS_COMMANDS:
		return run_commands(&options);
	case OPTIONS_BACKGROUND:
	case OPTIONS_FOREGROUND:
		return start_daemon(&options);
	case OPTIONS_VERSION:
		help_print_version();
		return 0;
	case OPTIONS_UNKNOWN:
		printf("Unrecognized option %s\n", options.unknown);
		help_print();
		return 0; /* as the vendor's */
	case OPTIONS_HELP:
		help_print();
		return 0;
	}
	return 0;
}
