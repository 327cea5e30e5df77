/* SPDX-License-Identifier: MIT */
/* Any datagrams as the daemon's answers to the front end. */
#include "choices.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

static size_t printed;

/* Replaces the kernel: a daemon that sends the bytes of the input, then hangs up. */
static ssize_t fuzz_recv(int fd, void *buffer, size_t size, int flags)
{
	static const char *const known[] = { "mpsd-ui 1", "X\1", "X\0", "O" };
	static char datagram[20000];
	size_t length;

	(void)fd;
	must(flags & MSG_TRUNC, "whether it was longer is known");
	if (!choices_left())
		return 0;
	if (any(2)) {
		const char *said = known[any(4)];

		length = said[0] == 'X' ? 2 : strlen(said);
		memcpy(datagram, said, length);
	} else {
		length = any(4) ? any(40) : take_number(2) % sizeof(datagram);
		take_bytes(datagram, length);
	}
	memcpy(buffer, datagram, length < size ? length : size);
	return (ssize_t)length;
}

static ssize_t fuzz_send(int fd, const void *bytes, size_t count, int flags)
{
	(void)fd;
	(void)bytes;
	must(flags & MSG_NOSIGNAL, "no signal ends the front end");
	must(count > 0, "an empty datagram would look like the end");
	return (ssize_t)count;
}

static int fuzz_poll(struct pollfd *events, nfds_t count, int timeout)
{
	(void)timeout;
	(void)count;
	events[0].revents = POLLIN;
	return 1;
}

static int fuzz_connect(int fd, const struct sockaddr *address, socklen_t size)
{
	(void)fd;
	(void)address;
	(void)size;
	return 0;
}

static int fuzz_getsockopt(int fd, int level, int name, void *value, socklen_t *size)
{
	struct ucred *peer = value;

	(void)fd;
	must(level == SOL_SOCKET && name == SO_PEERCRED && *size == sizeof(*peer), "it asks who listens");
	*peer = (struct ucred){ .uid = geteuid() };
	return 0;
}

#define recv fuzz_recv
#define send fuzz_send
#define poll fuzz_poll
#define connect fuzz_connect
#define getsockopt fuzz_getsockopt
#include "../../../clients/control/session.c"

void output_write(struct output *output, int fd, const char *bytes, size_t count)
{
	static volatile unsigned char sum;

	(void)output;
	(void)fd;
	must(count <= 16 * 1024, "no more than a datagram");
	for (size_t i = 0; i < count; i++)
		sum = (unsigned char)(sum + (unsigned char)bytes[i]);
	printed += count;
}

void output_say(struct output *output, int fd, const char *format, ...)
{
	(void)output;
	(void)fd;
	(void)format;
}

int64_t control_now_ms(void)
{
	static int64_t now_ms;

	return now_ms += 10;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const commands[] = { "", "get_server_list", "quit", "  quit -t 1", "quitx" };
	struct session session;
	int rc, status;

	choices_begin(data, size);
	rc = session_open(&session, "/nowhere");
	for (int i = 0; rc == 0 && i < 4; i++) {
		const char *command = commands[any(sizeof(commands) / sizeof(commands[0]))];

		rc = session_run(&session, command, strlen(command));
	}
	status = session_close(&session);
	must(rc == 0 || status != 0, "a conversation that failed says so");
	return 0;
}
