/* SPDX-License-Identifier: MIT */
/* Peers: the connections, at most MPSD_KEEPER_PEERS, none trusted to read or to stay.
 *
 *     free --accept--> not greeted --HELLO--> greeted <--reply read-- waiting
 *                           |                   |  `--reply unread----^  |
 *                           `-----patience------+------patience----------'--> free
 */
#include "keeper.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define TURN_REQUESTS 64 /* of one peer before the others are served */
#define ACCEPT_PAUSE_MS 100

static void forget(struct peer *peer)
{
	if (peer->waiting && peer->reply.fd >= 0)
		close(peer->reply.fd);
	if (peer->fd >= 0)
		close(peer->fd);
	peer->fd = -1;
	peer->waiting = false;
}

/* Sends the reply and closes its descriptor, or leaves both for later.  0, or -EAGAIN, -EPIPE. */
static int send_reply(int fd, struct reply *reply)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = { { 0 } };
	struct iovec parts[2] = {
		{ &reply->message, sizeof(reply->message) },
		{ &reply->payload, reply->length - sizeof(reply->message) },
	};
	struct msghdr datagram = { .msg_iov = parts, .msg_iovlen = 2 };
	ssize_t done;

	if (reply->fd >= 0) {
		struct cmsghdr *header = &control.align;

		header->cmsg_level = SOL_SOCKET;
		header->cmsg_type = SCM_RIGHTS;
		header->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(header), &reply->fd, sizeof(int));
		datagram.msg_control = &control;
		datagram.msg_controllen = sizeof(control.bytes);
	}
	do
		done = sendmsg(fd, &datagram, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (done < 0 && errno == EINTR);
	if (done < 0 && (errno == EAGAIN || errno == ETOOMANYREFS || errno == ENOBUFS || errno == ENOMEM))
		return -EAGAIN; /* the kernel's limits too end when the peer reads */
	if (reply->fd >= 0)
		close(reply->fd);
	reply->fd = -1;
	return done < 0 ? -EPIPE : 0;
}

/* Now, or when the peer reads; not at all to one that is gone. */
static void answer(struct peer *peer)
{
	int rc = peer->deaf ? -EPIPE : send_reply(peer->fd, &peer->reply);

	peer->waiting = rc == -EAGAIN;
	if (rc == -EAGAIN) {
		peer->until_ms = keeper_now_ms() + MPSD_KEEPER_PATIENCE_MS;
	} else if (rc) {
		peer->deaf = true;
		if (peer->reply.fd >= 0)
			close(peer->reply.fd);
		peer->reply.fd = -1;
	}
}

/* Collects the descriptors of a datagram: the first into *request, the others are closed. */
static void take_descriptors(struct msghdr *datagram, struct request *request)
{
	request->fd = -1;
	request->descriptors = 0;
	for (struct cmsghdr *header = CMSG_FIRSTHDR(datagram); header; header = CMSG_NXTHDR(datagram, header)) {
		size_t count;

		if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
			continue;
		count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < count; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
			if (request->descriptors++ == 0)
				request->fd = fd;
			else
				close(fd);
		}
	}
	if (datagram->msg_flags & MSG_CTRUNC)
		request->descriptors = UINT32_MAX; /* more than the buffer has room for */
}

/* 1: a request was read.  0: none waits.  -EPIPE: the end, after all that was sent. */
static int receive(int fd, struct request *request)
{
	union { /* for one descriptor exactly: the kernel itself closes what does not fit */
		char bytes[CMSG_LEN(sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec part = { &request->message, sizeof(request->message) };
	struct msghdr datagram = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control.bytes),
	};
	ssize_t length;

	memset(&request->message, 0, sizeof(request->message));
	do
		length = recvmsg(fd, &datagram, MSG_DONTWAIT | MSG_CMSG_CLOEXEC | MSG_TRUNC);
	while (length < 0 && (errno == EINTR || errno == ECONNRESET)); /* reset: reported once, before the queued data */
	if (length < 0)
		return errno == EAGAIN || errno == ENOMEM ? 0 : -EPIPE;
	take_descriptors(&datagram, request);
	if (length == 0) {
		if (request->fd >= 0)
			close(request->fd);
		return -EPIPE;
	}
	request->length = (size_t)length;
	return 1;
}

/* Some requests of one peer. */
static void serve_peer(struct peers *peers, struct peer *peer, struct protocol *protocol)
{
	for (int i = 0; i < TURN_REQUESTS && !peer->waiting && !peers->stop; i++) {
		struct request request;
		enum protocol_next next;
		int got = receive(peer->fd, &request);

		if (got <= 0) {
			if (got < 0)
				forget(peer);
			return;
		}
		next = protocol_answer(protocol, &peer->greeted, &request, &peer->reply);
		if (peer->reply.length > 0)
			answer(peer);
		if (next == PROTOCOL_STOP)
			peers->stop = true;
		if (next == PROTOCOL_PART) {
			forget(peer);
			return;
		}
	}
}

/* Send one datagram to a peer that gets no place. */
static void turn_away(int fd, uint32_t status)
{
	struct request nothing = { .fd = -1 };
	struct reply reply;

	protocol_refuse(&nothing, status, &reply);
	send_reply(fd, &reply); /* if it does not fit, so be it */
	close(fd);
}

static bool is_stranger(int fd)
{
	struct ucred peer;
	socklen_t size = sizeof(peer);

	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.uid != geteuid();
}

static struct peer *free_place(struct peers *peers)
{
	for (int i = 0; i < MPSD_KEEPER_PEERS; i++)
		if (peers->places[i].fd < 0)
			return &peers->places[i];
	return NULL;
}

/* Takes `fd`. */
static void welcome(struct peers *peers, struct protocol *protocol, int fd)
{
	struct peer *peer = free_place(peers);

	if (is_stranger(fd)) {
		protocol->stat.strangers++;
		turn_away(fd, MPSD_KEEPER_NOT_ALLOWED);
	} else if (!peer) {
		turn_away(fd, MPSD_KEEPER_PEERS_FULL);
	} else {
		peer->fd = fd;
		peer->greeted = peer->deaf = peer->waiting = false;
		peer->reply.fd = -1;
		peer->until_ms = keeper_now_ms() + MPSD_KEEPER_PATIENCE_MS;
	}
}

static void accept_all(struct peers *peers, struct protocol *protocol)
{
	for (int i = 0; i < TURN_REQUESTS; i++) {
		int fd = accept4(peers->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd >= 0) {
			welcome(peers, protocol, fd);
		} else if (errno != EINTR && errno != ECONNABORTED) {
			if (errno != EAGAIN) /* poll() would come back at once */
				peers->accept_after_ms = keeper_now_ms() + ACCEPT_PAUSE_MS;
			return;
		}
	}
}

static void serve_event(struct peers *peers, struct peer *peer, struct protocol *protocol, short events)
{
	if (peer->waiting) {
		if (events & (POLLERR | POLLHUP))
			peer->deaf = true;
		if (events & (POLLERR | POLLHUP | POLLOUT))
			answer(peer);
	}
	if (events)
		serve_peer(peers, peer, protocol);
}

void peers_init(struct peers *peers, int listener)
{
	memset(peers, 0, sizeof(*peers));
	peers->listener = listener;
	for (int i = 0; i < MPSD_KEEPER_PEERS; i++)
		peers->places[i].fd = -1;
}

static bool may_expire(const struct peer *peer)
{
	return peer->fd >= 0 && (peer->waiting || !peer->greeted);
}

/* Fills PEERS_EVENTS events.  The timeout for poll(): until the first patience ends. */
int peers_watch(const struct peers *peers, struct pollfd *events)
{
	int64_t now = keeper_now_ms(), until = INT64_MAX;
	bool paused = peers->accept_after_ms > now;

	for (int i = 0; i < MPSD_KEEPER_PEERS; i++) {
		const struct peer *peer = &peers->places[i];

		events[i] = (struct pollfd){ .fd = peer->fd, .events = peer->waiting ? POLLOUT : POLLIN };
		if (may_expire(peer) && peer->until_ms < until)
			until = peer->until_ms;
	}
	events[MPSD_KEEPER_PEERS] = (struct pollfd){ .fd = paused ? -1 : peers->listener, .events = POLLIN };
	if (paused && peers->accept_after_ms < until)
		until = peers->accept_after_ms;
	if (until == INT64_MAX)
		return -1; /* forever: no reply is pending */
	return until > now ? (int)(until - now) : 0;
}

/* Peers before the listener: the place of one that died is free for the next. */
void peers_serve(struct peers *peers, struct protocol *protocol, const struct pollfd *events)
{
	for (int i = 0; i < MPSD_KEEPER_PEERS && !peers->stop; i++) {
		struct peer *peer = &peers->places[i];

		if (peer->fd >= 0)
			serve_event(peers, peer, protocol, events[i].revents);
		if (may_expire(peer) && peer->until_ms <= keeper_now_ms()) {
			protocol->stat.impatience++;
			forget(peer);
		}
	}
	if (events[MPSD_KEEPER_PEERS].revents && !peers->stop)
		accept_all(peers, protocol);
	protocol->stat.peers = 0;
	for (int i = 0; i < MPSD_KEEPER_PEERS; i++)
		protocol->stat.peers += peers->places[i].fd >= 0;
}
