/* The front end: lines from stdin to the daemon, its answers to stdout. */
#include "daemon.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct link_packet packet;

static int fail(const char *what)
{
	fflush(stdout);
	fprintf(stderr, "%s MPS control daemon process\n", what);
	return 1;
}

/* Waits for ever: `quit` takes as long as the clients do.  The exit status of the command, or -errno. */
static int run_line(int daemon, const char *line, size_t length)
{
	int rc = link_send(daemon, LINK_COMMAND, (struct link_head){ 0 }, line, length, LINK_NO_FD);

	while (rc == 0) {
		rc = link_receive(daemon, &packet, -1);
		if (rc < 0)
			return rc;
		if (packet.head.kind == LINK_END)
			return packet.head.status;
		if (packet.head.kind == LINK_OUTPUT)
			fwrite(packet.payload, 1, packet.head.size, stdout);
	}
	return rc;
}

/* A line as the vendor's reads it: what follows a NUL is lost. */
static size_t line_length(const char *line, ssize_t got)
{
	size_t length = strnlen(line, (size_t)got);

	return length && line[length - 1] == '\n' ? length - 1 : length;
}

int run_frontend(void)
{
	int daemon = link_connect(link_pipe_directory(), "control");
	char *line = NULL;
	size_t size = 0;
	ssize_t got;
	int status = 0;

	if (daemon < 0)
		return fail("Cannot find");
	if (link_send(daemon, LINK_UI, (struct link_head){ 0 }, NULL, 0, LINK_NO_FD) < 0 ||
	    link_receive(daemon, &packet, -1) < 0)
		return fail("Cannot send command to");
	while (status >= 0 && (got = getline(&line, &size, stdin)) >= 0) {
		size_t length = line_length(line, got);

		status = run_line(daemon, line, length > LINK_PAYLOAD ? LINK_PAYLOAD : length);
		fflush(stdout);
	}
	free(line);
	close(daemon);
	return status < 0 ? fail("Cannot send command to") : status;
}
