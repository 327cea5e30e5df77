/* SPDX-License-Identifier: MIT */
/* Handover: everything to systemd's descriptor store (sd_notify(3), "FDSTORE=1"), spoken directly:
 * one datagram a descriptor, then a barrier, for systemd asks the sender's pid who it is. */
#include "keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define WAIT_SECONDS 5 /* for one datagram, and for the barrier */

/* 0, or -EINVAL: no path and no abstract name, or too long. */
static int fill_address(const char *name, struct sockaddr_un *address, socklen_t *size)
{
	size_t length = strlen(name);

	if ((name[0] != '/' && name[0] != '@') || length < 2 || length >= sizeof(address->sun_path))
		return -EINVAL;
	memset(address, 0, sizeof(*address));
	address->sun_family = AF_UNIX;
	memcpy(address->sun_path, name, length);
	if (name[0] == '@')
		address->sun_path[0] = '\0';
	*size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length + (name[0] == '/' ? 1 : 0));
	return 0;
}

/* Connected; or -errno. */
static int open_notify(const char *name)
{
	struct sockaddr_un address;
	struct timeval wait = { .tv_sec = WAIT_SECONDS };
	socklen_t size;
	int fd, rc = fill_address(name, &address, &size);

	if (rc)
		return rc;
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait)) != 0 ||
	    connect(fd, (const struct sockaddr *)&address, size) != 0) {
		rc = -errno;
		close(fd);
		return rc;
	}
	return fd;
}

static int notify(int notify_fd, const char *text, int passed)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = { .align = { CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS } };
	struct iovec part = { (void *)text, strlen(text) };
	struct msghdr datagram = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control.bytes),
	};
	ssize_t done;

	memcpy(CMSG_DATA(&control.align), &passed, sizeof(int));
	do
		done = sendmsg(notify_fd, &datagram, MSG_NOSIGNAL);
	while (done < 0 && errno == EINTR);
	return done < 0 ? -errno : 0;
}

static int hand_item(int notify_fd, const struct item *item)
{
	char text[64 + 3 * 17 + MPSD_KEEPER_ID_BYTES];
	int length = snprintf(text, sizeof(text), "FDSTORE=1\nFDNAME=mpsd1,%" PRIx64 ",%" PRIx64 ",%" PRIx64 ",",
			      item->generation, item->size, item->flags);
	char *id = text + length;

	memcpy(id, item->id, MPSD_KEEPER_ID_BYTES);
	id[MPSD_KEEPER_ID_BYTES] = '\0';
	for (; *id; id++)
		if (*id == ':') /* separates names in LISTEN_FDNAMES */
			*id = '+';
	return notify(notify_fd, text, item->fd);
}

/* systemd closes its end when it has taken all that was sent before. */
static int wait_for_barrier(int notify_fd)
{
	struct pollfd event = { .events = POLLIN };
	int ends[2], rc;

	if (pipe2(ends, O_CLOEXEC) != 0)
		return -errno;
	rc = notify(notify_fd, "BARRIER=1", ends[1]);
	close(ends[1]);
	event.fd = ends[0];
	if (rc == 0 && poll(&event, 1, WAIT_SECONDS * 1000) <= 0)
		rc = -ETIMEDOUT;
	close(ends[0]);
	return rc;
}

/* 0, or the first -errno; as much as possible has then been handed over. Bounded, but it does block. */
int handover_all(const struct table *table, const char *notify_socket)
{
	int rc = 0, fd = open_notify(notify_socket);

	if (fd < 0)
		return fd;
	for (uint32_t i = 0; i < table->count && rc != -EAGAIN; i++) { /* EAGAIN: WAIT_SECONDS are over */
		int item_rc = hand_item(fd, table->items[i]);

		if (item_rc && rc != -EAGAIN)
			rc = item_rc;
	}
	if (rc != -EAGAIN) {
		int barrier_rc = wait_for_barrier(fd);

		rc = rc ? rc : barrier_rc;
	}
	close(fd);
	return rc;
}
