/* Sending and receiving messages with descriptors and credentials. */
#include "link.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { SEND_MS = 2000 };

static int wait_for(int socket, short events, int timeout_ms)
{
	struct pollfd item = { .fd = socket, .events = events };
	int rc;

	do
		rc = poll(&item, 1, timeout_ms);
	while (rc < 0 && errno == EINTR);
	return rc < 0 ? -errno : rc == 0 ? -ETIMEDOUT : 0;
}

static void add_control(struct msghdr *message, int type, const void *data, size_t size)
{
	struct cmsghdr *part = (struct cmsghdr *)((char *)message->msg_control + message->msg_controllen);

	*part = (struct cmsghdr){ .cmsg_len = CMSG_LEN(size), .cmsg_level = SOL_SOCKET, .cmsg_type = type };
	memcpy(CMSG_DATA(part), data, size);
	message->msg_controllen += CMSG_SPACE(size);
}

/* Messages that introduce the sender carry its credentials; a probe does not. */
static bool shows_who(enum link_kind kind)
{
	return kind == LINK_HELLO || kind == LINK_ATTACH || kind == LINK_UI || kind == LINK_SERVER;
}

int link_send(int socket, enum link_kind kind, struct link_head head, const void *payload, size_t size, int pass_fd)
{
	struct iovec parts[2] = { { &head, sizeof(head) }, { (void *)payload, size } };
	char control[CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(struct ucred))] __attribute__((aligned(8))) = { 0 };
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = size ? 2 : 1, .msg_control = control };
	struct ucred who = { getpid(), geteuid(), getegid() };
	ssize_t sent;
	int rc;

	head.magic = LINK_MAGIC;
	head.kind = kind;
	head.size = (uint32_t)size;
	if (pass_fd >= 0)
		add_control(&message, SCM_RIGHTS, &pass_fd, sizeof(pass_fd));
	if (shows_who(kind))
		add_control(&message, SCM_CREDENTIALS, &who, sizeof(who));
	for (;;) {
		sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (sent >= 0)
			return 0;
		if (errno == EINTR)
			continue;
		if (errno != EAGAIN)
			return -errno;
		rc = wait_for(socket, POLLOUT, SEND_MS);
		if (rc < 0)
			return rc;
	}
}

static void take_control(struct msghdr *message, struct link_packet *packet)
{
	for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part; part = CMSG_NXTHDR(message, part)) {
		struct ucred who;

		if (part->cmsg_level != SOL_SOCKET)
			continue;
		if (part->cmsg_type == SCM_CREDENTIALS && part->cmsg_len >= CMSG_LEN(sizeof(who))) {
			memcpy(&who, CMSG_DATA(part), sizeof(who));
			packet->pid = who.pid;
			packet->uid = who.uid;
		}
		for (size_t at = 0; part->cmsg_type == SCM_RIGHTS && CMSG_LEN(at + sizeof(int)) <= part->cmsg_len; at += sizeof(int)) {
			if (packet->fd >= 0)
				close(packet->fd); /* we send one at a time: more is noise */
			memcpy(&packet->fd, CMSG_DATA(part) + at, sizeof(int));
		}
	}
}

int link_receive(int socket, struct link_packet *packet, int timeout_ms)
{
	struct iovec parts[2] = { { &packet->head, sizeof(packet->head) }, { packet->payload, sizeof(packet->payload) } };
	char control[CMSG_SPACE(sizeof(struct ucred)) + CMSG_SPACE(4 * sizeof(int))] __attribute__((aligned(8)));
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2, .msg_control = control, .msg_controllen = sizeof(control) };
	ssize_t got;
	int rc = wait_for(socket, POLLIN, timeout_ms);

	if (rc < 0)
		return rc;
	packet->fd = LINK_NO_FD;
	packet->pid = 0;
	packet->uid = (uid_t)-1;
	do
		got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
	while (got < 0 && errno == EINTR);
	if (got < 0)
		return -errno;
	take_control(&message, packet);
	if (got == 0)
		return -EPIPE;
	if ((size_t)got >= sizeof(packet->head) && packet->head.magic == LINK_MAGIC &&
	    packet->head.size == (size_t)got - sizeof(packet->head))
		return 0;
	if (packet->fd >= 0)
		close(packet->fd);
	packet->fd = LINK_NO_FD;
	return -EPROTO;
}

void link_more_descriptors(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		return;
	limit.rlim_cur = limit.rlim_max;
	(void)setrlimit(RLIMIT_NOFILE, &limit);
}

const char *link_pipe_directory(void)
{
	const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY");

	return directory && *directory ? directory : "/tmp/nvidia-mps";
}

/* The listening side sends the first message. */
static int hear_greeting(int fd)
{
	struct link_packet *packet = malloc(sizeof(*packet));
	int rc = packet ? link_receive(fd, packet, -1) : -ENOMEM;

	if (rc == 0 && packet->head.kind != LINK_GREETING)
		rc = -EPROTO;
	free(packet);
	return rc;
}

int link_connect(const char *directory, const char *name)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd, rc;

	if ((size_t)snprintf(address.sun_path, sizeof(address.sun_path), "%s/%s", directory, name) >= sizeof(address.sun_path))
		return -ENAMETOOLONG;
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	do
		rc = connect(fd, (struct sockaddr *)&address, sizeof(address));
	while (rc < 0 && errno == EINTR);
	rc = rc < 0 ? -errno : hear_greeting(fd);
	if (rc == 0)
		return fd;
	close(fd);
	return rc;
}
