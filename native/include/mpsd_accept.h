/* SPDX-License-Identifier: MIT */
/*
 * mpsd_accept.h: accept a connection, read its peer's credentials, and pass it to the keeper without returning in between.
 *
 * Until the keeper has the connection, the death of mpsd closes it, and its client runs without MPS or gets an error. In Python
 * the two calls are some 70 us apart, or milliseconds if another thread takes the interpreter lock in between.
 *
 * Connections that their peers have closed are skipped: accepting and closing one takes 2 us here, and a millisecond if it
 * becomes a conversation first. So processes that only connect and hang up do not delay other clients.
 */
#ifndef MPSD_ACCEPT_H
#define MPSD_ACCEPT_H

#ifndef MPSD_CDEF /* a binding defines it and runs `cc -E -P`: only declarations remain */
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#endif

struct mpsd_arrival {
	int32_t pid; /* of the process that connected; 0 where this pid namespace does not have it */
	uint32_t uid;
	uint32_t gid;
	uint32_t gone;   /* 1: it has hung up, and may have left descriptors behind; the keeper was not given it */
	uint32_t passed; /* connections before it that had hung up: closed */
	int32_t lost;    /* 0, or the errno of a keeper that did not take it */
};

/*
 * Accept the next connection at `listener`. Returns its descriptor, close-on-exec and non-blocking; -ECONNABORTED if every
 * connection it looked at had been closed by its peer, and more may wait; or another -errno if it accepted none. `request` is
 * the datagram that carries the descriptor to `keeper`; from then on each message on the connection carries its sender's
 * credentials. keeper -1: no keeper runs. bytes 0: do not pass it on. Does not block if `listener` is non-blocking.
 */
static int mpsd_accept(int listener, int keeper, const char *request, size_t bytes, struct mpsd_arrival *out);

#ifndef MPSD_CDEF
enum { MPSD_ACCEPT_MOST_PASSED = 256 }; /* half a millisecond */

static int mpsd_has_hung_up(int fd)
{
	struct pollfd look = { .fd = fd, .events = 0 };

	return poll(&look, 1, 0) == 1 && (look.revents & POLLHUP);
}

/*
 * Whether close(2) of this connection cannot block, because no descriptor from another process is queued in it. Its peer can
 * send no more. Messages without descriptors are discarded. The buffer has room for the sender's ids alone, which come with every
 * message: the end has none, unlike an empty message. A message with descriptors sets MSG_CTRUNC and stays
 * queued.
 */
static int mpsd_is_harmless(int fd)
{
	const int on = 1;
	char first;
	struct iovec part = { &first, sizeof(first) };

	if (setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) < 0)
		return 0;
	for (int message = 0; message < 8; message++) {
		union {
			char bytes[CMSG_SPACE(sizeof(struct ucred))];
			struct cmsghdr align;
		} ids;
		struct msghdr look = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &ids, .msg_controllen = sizeof(ids.bytes) };
		ssize_t found = recvmsg(fd, &look, MSG_PEEK | MSG_DONTWAIT);

		if (found < 0 && errno == ECONNRESET) /* reported once, before the queued data */
			continue;
		if (found >= 0 && (look.msg_flags & MSG_CTRUNC))
			return 0;
		if (found < 0 || !look.msg_controllen)
			return 1;
		recv(fd, &first, sizeof(first), MSG_DONTWAIT);
	}
	return 0; /* a long speech: it can take its time elsewhere */
}

static int mpsd_give(int keeper, int fd, const char *request, size_t bytes)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = { { 0 } };
	struct iovec part = { (char *)request, bytes };
	struct msghdr datagram = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control.bytes),
	};

	control.align.cmsg_level = SOL_SOCKET;
	control.align.cmsg_type = SCM_RIGHTS;
	control.align.cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(&control.align), &fd, sizeof(fd));
	return sendmsg(keeper, &datagram, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? errno : 0;
}

static int mpsd_accept(int listener, int keeper, const char *request, size_t bytes, struct mpsd_arrival *out)
{
	const int on = 1;

	memset(out, 0, sizeof(*out));
	while (out->passed < MPSD_ACCEPT_MOST_PASSED) {
		struct ucred who = { 0 };
		socklen_t size = sizeof(who);
		int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd < 0)
			return -errno;
		out->gone = mpsd_has_hung_up(fd);
		if (out->gone && mpsd_is_harmless(fd)) {
			close(fd);
			out->passed++;
			continue;
		}
		if (bytes && !out->gone) {
			out->lost = keeper < 0 ? 0 : mpsd_give(keeper, fd, request, bytes);
			setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on));
		}
		getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size);
		out->pid = who.pid;
		out->uid = who.uid;
		out->gid = who.gid;
		return fd;
	}
	return -ECONNABORTED;
}
#endif

#endif
