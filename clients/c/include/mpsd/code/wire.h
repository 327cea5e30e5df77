/* SPDX-License-Identifier: MIT */
/* mpsd/code/wire.h: datagrams with descriptors over one socket, each before a time.  Knows nothing of what is in them. */
#ifndef MPSD_CODE_WIRE_H
#define MPSD_CODE_WIRE_H

#define MPSD_NAP_SECONDS 0.01 /* between attempts at what cannot be waited for */

/* CLOCK_MONOTONIC, in seconds. */
static inline double mpsd_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static inline void mpsd_nap(double seconds)
{
	struct timespec left;

	left.tv_sec = (time_t)seconds;
	left.tv_nsec = (long)((seconds - (double)left.tv_sec) * 1e9);
	nanosleep(&left, NULL);
}

/* Whether a file of this process may have so many bytes (RLIMIT_FSIZE): one that grows beyond ends the program by SIGXFSZ. */
static inline int mpsd_file_fits(uint64_t bytes)
{
	struct rlimit limit;

	return getrlimit(RLIMIT_FSIZE, &limit) < 0 || bytes <= limit.rlim_cur;
}

static inline void mpsd_close_all(int *fds, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		if (fds[i] >= 0)
			close(fds[i]);
		fds[i] = -1;
	}
}

/* 0, or -ETIMEDOUT. */
static inline int mpsd_wire_wait(int fd, short events, double until)
{
	struct pollfd poll_for;
	double left = until - mpsd_now();

	poll_for.fd = fd;
	poll_for.events = events;
	poll_for.revents = 0;
	if (left <= 0)
		return -ETIMEDOUT;
	poll(&poll_for, 1, left > 3600 ? 3600000 : (int)(left * 1000) + 1); /* interrupted, or nothing: the caller asks again */
	return 0;
}

/* A socket connected to root's mpsd or this user's, or -errno with an error text in `why`: -ENOENT, -ECONNREFUSED: mpsd does
 * not listen; -ETIMEDOUT: a process listens but does not accept; -EPERM: it belongs to another user. */
static inline int mpsd_wire_connect(const struct sockaddr_un *address, double until, char *why, size_t room)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), rc;
	struct ucred peer;

	if (fd < 0) {
		rc = -errno;
		snprintf(why, room, "%s", strerror(-rc));
		return rc;
	}
	while (connect(fd, (const struct sockaddr *)address, sizeof(*address)) < 0) {
		rc = -errno;
		if (rc == -EINTR)
			continue;
		if (rc == -EAGAIN && mpsd_now() < until) { /* more arrivals than it has accepted */
			mpsd_nap(MPSD_NAP_SECONDS);
			continue;
		}
		close(fd);
		rc = rc == -EAGAIN ? -ETIMEDOUT : rc;
		snprintf(why, room, "%s", strerror(-rc));
		return rc;
	}
	rc = mpsd_peer_check(fd, &peer, why, room);
	if (rc == 0)
		return fd;
	close(fd);
	return rc;
}

/* Borrows all.  0; -ECONNRESET: the other end has gone, and nothing was sent; -ETIMEDOUT; -errno. */
static inline int mpsd_wire_send(int fd, const void *bytes, size_t count, const int *fds, unsigned fd_count, double until)
{
	union {
		char bytes[CMSG_SPACE(MPSD_DESCRIPTORS * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec part;
	struct msghdr message;
	struct cmsghdr *head;
	int rc;

	part.iov_base = (void *)(uintptr_t)bytes;
	part.iov_len = count;
	memset(&message, 0, sizeof(message));
	message.msg_iov = &part;
	message.msg_iovlen = 1;
	if (fd_count) {
		memset(&control, 0, sizeof(control));
		message.msg_control = control.bytes;
		message.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
		head = CMSG_FIRSTHDR(&message);
		head->cmsg_level = SOL_SOCKET;
		head->cmsg_type = SCM_RIGHTS;
		head->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
		memcpy(CMSG_DATA(head), fds, fd_count * sizeof(int));
	}
	for (;;) {
		if (sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
			return 0;
		rc = -errno;
		if (rc == -EPIPE || rc == -ECONNRESET)
			return -ECONNRESET;
		if (rc == -ETOOMANYREFS && mpsd_now() < until) /* of this user's, too many descriptors are on their way */
			mpsd_nap(MPSD_NAP_SECONDS);
		else if (rc == -EAGAIN)
			rc = mpsd_wire_wait(fd, POLLOUT, until);
		if (rc < 0 && rc != -EINTR && rc != -ETOOMANYREFS)
			return rc;
		if (mpsd_now() >= until)
			return -ETIMEDOUT;
	}
}

/* Puts what came with a datagram into fds (MPSD_DESCRIPTORS of them), and closes what is beyond. */
static inline unsigned mpsd_wire_descriptors(struct msghdr *message, int *fds)
{
	struct cmsghdr *head;
	unsigned count = 0;
	size_t here;
	int fd;

	for (head = CMSG_FIRSTHDR(message); head; head = CMSG_NXTHDR(message, head)) {
		if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS)
			continue;
		here = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < here; i++) {
			memcpy(&fd, CMSG_DATA(head) + i * sizeof(int), sizeof(fd));
			if (count < MPSD_DESCRIPTORS)
				fds[count++] = fd;
			else
				close(fd);
		}
	}
	return count;
}

/* The next datagram, of MPSD_DATAGRAM_BYTES at most.  0; -ECONNRESET: the end; -ETIMEDOUT; -EMSGSIZE: it was longer; -EMFILE: its
 * descriptors did not all come.  On failure none is left open. */
static inline int mpsd_wire_receive(int fd, void *bytes, size_t *count, int *fds, unsigned *fd_count, double until)
{
	union {
		char bytes[CMSG_SPACE(MPSD_DESCRIPTORS * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec part;
	struct msghdr message;
	ssize_t got;
	int resets = 0, rc;

	part.iov_base = bytes;
	part.iov_len = MPSD_DATAGRAM_BYTES;
	for (;;) {
		memset(&message, 0, sizeof(message));
		message.msg_iov = &part;
		message.msg_iovlen = 1;
		message.msg_control = control.bytes;
		message.msg_controllen = sizeof(control.bytes);
		got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
		if (got >= 0)
			break;
		rc = -errno;
		if (rc == -ECONNRESET && !resets++) /* reported once, before the queued data */
			continue;
		if (rc == -EAGAIN)
			rc = mpsd_wire_wait(fd, POLLIN, until);
		if (rc < 0 && rc != -EINTR)
			return rc;
	}
	*fd_count = mpsd_wire_descriptors(&message, fds);
	*count = (size_t)got;
	if (got > 0 && !(message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
		return 0;
	mpsd_close_all(fds, *fd_count);
	*fd_count = 0;
	return got == 0 ? -ECONNRESET : message.msg_flags & MSG_TRUNC ? -EMSGSIZE : -EMFILE;
}

#endif
