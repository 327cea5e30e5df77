/* SPDX-License-Identifier: MIT */
/* Session: one connection to the daemon over PIPE_DIR/mpsd-ui (AF_UNIX, SOCK_SEQPACKET).
 *
 *     front end                      daemon: root's, or of the caller's own user (connect_to)
 *     "mpsd-ui 1"              ->
 *                              <-    "mpsd-ui 1", or E... and X, and it closes
 *     the bytes of a command   ->    (one space for none: an empty datagram would look like the end)
 *                              <-    any number of O (for stdout) and E (for stderr)
 *                              <-    X and one byte: the status
 *
 * A datagram of the daemon's is a letter and at most 16 KiB. */
#include "control.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "mpsd/code/peer.h"

#define SOCKET_NAME "/mpsd-ui"
#define VERSION "mpsd-ui 1"
#define REPLY_BYTES (1 + 16 * 1024)
#define FOREVER (-1)

static const char cannot_find[] = "Cannot find MPS control daemon process\n";
static const char cannot_send[] = "Cannot send command to MPS control daemon process\n";

/* Returns 0 when the socket is readable or closed by the peer, else -ETIMEDOUT.  until_ms < 0: wait forever. */
static int wait_readable(int fd, int64_t until_ms)
{
	for (;;) {
		struct pollfd event = { .fd = fd, .events = POLLIN };
		int64_t left = until_ms < 0 ? -1 : until_ms - control_now_ms();
		int ready;

		if (until_ms >= 0 && left < 0)
			left = 0;
		ready = poll(&event, 1, left > INT_MAX ? INT_MAX : (int)left);
		if (ready > 0)
			return 0;
		if (ready < 0 && errno != EINTR && errno != EAGAIN)
			return -errno;
		if (ready == 0 && left <= INT_MAX)
			return -ETIMEDOUT;
	}
}

/* Returns the length of the next datagram, at most `size`; 0 or -errno when the connection has ended. */
static ssize_t receive(int fd, char *buffer, size_t size, int64_t until_ms)
{
	ssize_t length;
	int rc = wait_readable(fd, until_ms);

	if (rc)
		return rc;
	do
		length = recv(fd, buffer, size, MSG_TRUNC | MSG_DONTWAIT);
	while (length < 0 && (errno == EINTR || errno == ECONNRESET)); /* the kernel reports a reset once, before queued data */
	if (length < 0)
		return -errno;
	return (size_t)length > size ? -EMSGSIZE : length;
}

/* Returns the time in so many seconds, at most about 366 days; FOREVER: never. */
static int64_t deadline(int64_t seconds)
{
	return seconds == FOREVER ? FOREVER : control_now_ms() + seconds * 1000;
}

static int send_datagram(int fd, const char *bytes, size_t count)
{
	ssize_t done;

	do
		done = send(fd, bytes, count, MSG_NOSIGNAL); /* SO_SNDTIMEO bounds it */
	while (done < 0 && errno == EINTR);
	return done < 0 ? -errno : 0;
}

/* waited: seconds that the front end waited for the answer. */
static int say_broken(struct session *session, int why, int64_t waited)
{
	if (why == -ETIMEDOUT || why == -EAGAIN)
		output_say(&session->output, STDERR_FILENO,
			    "%sNo answer within %" PRId64 " seconds\n", cannot_send, waited);
	else
		output_say(&session->output, STDERR_FILENO, "%s", cannot_send);
	session->status = 1;
	return -EPIPE;
}

/* Takes replies until the status. wait: for each, in seconds. *printed: whether any text came. 0, or -errno after it was
 * reported. */
static int take_replies(struct session *session, int64_t wait, bool *printed)
{
	char reply[REPLY_BYTES];

	reply[0] = '\0';
	*printed = false;
	for (;;) {
		ssize_t length = receive(session->socket, reply, sizeof(reply), deadline(wait));

		if (length <= 0)
			return say_broken(session, (int)length, wait);
		if (reply[0] == 'X' && length == 2) {
			if (reply[1])
				session->status = (unsigned char)reply[1];
			return 0;
		}
		if (reply[0] != 'O' && reply[0] != 'E')
			return say_broken(session, -EPROTO, wait);
		*printed = true;
		output_write(&session->output, reply[0] == 'O' ? STDOUT_FILENO : STDERR_FILENO, reply + 1, (size_t)length - 1);
	}
}

static void say_not_found(struct session *session, const char *path, const char *why)
{
	output_say(&session->output, STDERR_FILENO, "%s%s: %s\n", cannot_find, path, why);
	session->status = 1;
}

static int say_absent(struct session *session, const char *path, int why)
{
	session->status = 1;
	if (why == EAGAIN)
		output_say(&session->output, STDERR_FILENO,
			    "%s%s: nobody accepted the connection within %d seconds\n", cannot_find, path,
			    MPSD_WAIT_SECONDS);
	else if (why == ENOENT || why == ECONNREFUSED)
		output_say(&session->output, STDERR_FILENO, "%s", cannot_find);
	else
		say_not_found(session, path, strerror(why));
	return -why;
}

static int connect_to(struct session *session, const struct sockaddr_un *address)
{
	struct timeval wait = { .tv_sec = MPSD_WAIT_SECONDS };
	char why[MPSD_PEER_WORDS];
	struct ucred peer = { 0 };
	int rc;

	session->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (session->socket < 0)
		return say_absent(session, address->sun_path, errno);
	setsockopt(session->socket, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait)); /* bounds connect too */
	do
		rc = connect(session->socket, (const struct sockaddr *)address, sizeof(*address));
	while (rc < 0 && errno == EINTR);
	if (rc < 0)
		return say_absent(session, address->sun_path, errno);
	rc = mpsd_peer_check(session->socket, &peer, why, sizeof(why));
	if (rc == 0)
		session->daemon_pid = peer.pid;
	else
		say_not_found(session, address->sun_path, why);
	return rc;
}

/* Both sides name their version first.  Returns 0, or -errno after it printed why. */
static int greet(struct session *session)
{
	char reply[REPLY_BYTES];
	ssize_t length;
	bool printed;
	int rc = send_datagram(session->socket, VERSION, strlen(VERSION));

	if (rc && rc != -EPIPE && rc != -ECONNRESET) /* these: the daemon may have sent the reason before it closed */
		return say_broken(session, rc, MPSD_WAIT_SECONDS);
	length = receive(session->socket, reply, sizeof(reply), deadline(MPSD_WAIT_SECONDS));
	if (length <= 0)
		return say_broken(session, (int)length, MPSD_WAIT_SECONDS);
	if ((size_t)length == strlen(VERSION) && memcmp(reply, VERSION, (size_t)length) == 0)
		return 0;
	if (reply[0] == 'E') { /* the daemon refuses, and sends the reason */
		output_write(&session->output, STDERR_FILENO, reply + 1, (size_t)length - 1);
		rc = take_replies(session, MPSD_WAIT_SECONDS, &printed);
		session->status = session->status ? session->status : 1;
		return rc ? rc : -EPROTO;
	}
	output_say(&session->output, STDERR_FILENO, "MPS control daemon process does not speak \"%s\"\n", VERSION);
	session->status = 1;
	return -EPROTO;
}

/* Connects and greets.  Returns 0, or -errno after it printed why; call session_close() in both cases. */
int session_open(struct session *session, const char *pipe_directory)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	size_t length = strlen(pipe_directory) + strlen(SOCKET_NAME);
	int rc;

	*session = (struct session){ .socket = -1 };
	if (length >= sizeof(address.sun_path)) {
		output_say(&session->output, STDERR_FILENO,
			    "CUDA_MPS_PIPE_DIRECTORY is too long: %s in it makes a path of %zu bytes, a socket's may have %zu\n",
			    SOCKET_NAME + 1, length, sizeof(address.sun_path) - 1);
		session->status = 1;
		return -ENAMETOOLONG;
	}
	strcpy(address.sun_path, pipe_directory);
	strcat(address.sun_path, SOCKET_NAME);
	rc = connect_to(session, &address);
	return rc ? rc : greet(session);
}

/* Slurm takes a node down when `ps` still shows the daemon after `quit`, so the last thing to wait
 * for is its process: the connection ends before that.  Bounded: the daemon has already answered,
 * and a keeper's socket names a former mpsd, whose pid another process may have.  The front end does
 * not ask for the name: a user can hold the directory below /proc, and the look-up waits for ever.
 * Our side of the conversation is ended first, for the daemon waits for that a moment. */
static void wait_until_gone(struct session *session)
{
	int64_t until = deadline(MPSD_EXIT_SECONDS);
	int process = -1;
	char rest;

	if (session->daemon_pid > 0)
		process = (int)syscall(SYS_pidfd_open, session->daemon_pid, 0);
	shutdown(session->socket, SHUT_WR);
	while (receive(session->socket, &rest, sizeof(rest), until) > 0)
		;
	if (process < 0)
		return;
	wait_readable(process, until);
	close(process);
}

/* Runs one command.  Returns 0 if another may follow, or -errno after it printed why. */
int session_run(struct session *session, const char *command, size_t length)
{
	int64_t seconds, wait = MPSD_WAIT_SECONDS;
	bool quits = quit_parse(command, length, &seconds), printed;
	int rc = length ? send_datagram(session->socket, command, length)
			: send_datagram(session->socket, " ", 1); /* an empty datagram would mean the end */

	if (rc)
		return say_broken(session, rc, MPSD_WAIT_SECONDS);
	if (quits) /* is answered when the last client has finished its work: forever, without a number of seconds */
		wait = seconds < 0 ? FOREVER : seconds + MPSD_END_SECONDS;
	rc = take_replies(session, wait, &printed);
	if (rc == 0 && quits && !printed) /* a refused `quit` prints a reason */
		wait_until_gone(session);
	return rc;
}

/* Ends the connection and returns the exit status. */
int session_close(struct session *session)
{
	if (session->socket >= 0)
		close(session->socket);
	return session->status ? session->status : session->output.is_lost;
}
