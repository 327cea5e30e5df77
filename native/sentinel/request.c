/* SPDX-License-Identifier: MIT */
/* Requests of mpsd to the watcher. */
#include "sentinel.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Of a message: the one descriptor that came with it, or -1. */
static int sole_descriptor(struct msghdr *message)
{
	struct cmsghdr *head = CMSG_FIRSTHDR(message);
	int fd = -1;

	if (head && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS)
		memcpy(&fd, CMSG_DATA(head), sizeof(fd)); /* room for one */
	return fd;
}

int request_receive(int peer, struct mpsd_sentinel_request *request, int *fd)
{
	struct iovec part = { request, sizeof(*request) };
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(sizeof(int))];
	} room;
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = room.space, .msg_controllen = sizeof(room.space) };
	ssize_t size = recvmsg(peer, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);

	*fd = -1;
	if (size < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -1;
	*fd = sole_descriptor(&message);
	if (size == sizeof(*request) && !(message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) &&
	    request->version == MPSD_SENTINEL_VERSION && request->reserved == 0)
		return 1;
	if (*fd >= 0)
		close(*fd);
	return -1;
}
