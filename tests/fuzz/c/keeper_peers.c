/* SPDX-License-Identifier: MIT */
/* Datagrams of any size and with any number of descriptors, at the keeper's sockets; peers that do not read, and that leave. */
#include "choices.h"

#include "../../../native/keeper/keeper.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PEERS = 3, MOST_STEPS = 60, MOST_BYTES = 400 };

static int64_t now_ms;

int64_t keeper_now_ms(void)
{
	return now_ms;
}

/* One datagram; what the kernel does not take is not sent. */
static void say(int fd)
{
	union {
		char bytes[CMSG_SPACE(3 * sizeof(int))];
		struct cmsghdr align;
	} control = { { 0 } };
	struct mpsd_keeper_message message = { .major = MPSD_KEEPER_MAJOR, .op = (uint16_t)any(9) };
	unsigned char bytes[MOST_BYTES] = { 0 };
	struct iovec part = { bytes, any(4) ? sizeof(message) : any(MOST_BYTES) };
	struct msghdr datagram = { .msg_iov = &part, .msg_iovlen = 1 };
	uint32_t count = message.op == MPSD_KEEPER_PUT ? 1 : 0;
	int passed[3];

	if (message.op == MPSD_KEEPER_PUT || message.op == MPSD_KEEPER_GET) {
		message.generation = 1 + any(3);
		message.id[0] = (char)('a' + any(4));
	}
	memcpy(bytes, &message, sizeof(message));
	if (any(6) == 5)
		take_bytes(bytes + any(sizeof(message)), 1 + any(8));
	if (any(6) == 5)
		count = any(4);
	for (uint32_t i = 0; i < count; i++)
		passed[i] = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (count) {
		datagram.msg_control = &control;
		datagram.msg_controllen = CMSG_SPACE(count * sizeof(int));
		control.align = (struct cmsghdr){ CMSG_LEN(count * sizeof(int)), SOL_SOCKET, SCM_RIGHTS };
		memcpy(CMSG_DATA(&control.align), passed, count * sizeof(int));
	}
	sendmsg(fd, &datagram, MSG_DONTWAIT | MSG_NOSIGNAL);
	for (uint32_t i = 0; i < count; i++)
		close(passed[i]);
}

/* Reads an answer, with what came with it. */
static void hear(int fd)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	static struct reply reply;
	struct iovec part = { &reply, sizeof(reply) };
	struct msghdr datagram = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control.bytes),
	};
	const struct cmsghdr *head;
	int passed;

	if (recvmsg(fd, &datagram, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) < 0)
		return;
	must(!(datagram.msg_flags & (MSG_TRUNC | MSG_CTRUNC)), "an answer is no larger than it may be");
	head = CMSG_FIRSTHDR(&datagram);
	if (head && head->cmsg_type == SCM_RIGHTS) {
		memcpy(&passed, CMSG_DATA(head), sizeof(passed));
		close(passed);
	}
}

static void serve(struct peers *peers, struct protocol *protocol)
{
	struct pollfd events[PEERS_EVENTS];

	peers_watch(peers, events);
	poll(events, PEERS_EVENTS, 0);
	peers_serve(peers, protocol, events);
}

static void step(struct peers *peers, struct protocol *protocol, int *ends)
{
	int *end = &ends[any(PEERS)];

	switch (any(8)) {
	case 0:
		if (*end >= 0)
			close(*end);
		*end = -1;
		break;
	case 1:
		now_ms += any(MPSD_KEEPER_PATIENCE_MS + 10);
		break;
	case 2:
		hear(*end);
		break;
	case 3:
		serve(peers, protocol);
		break;
	default:
		if (*end >= 0)
			say(*end);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct peers peers;
	struct protocol protocol = { .table = { .max = 5 } };
	int before = open_descriptors(), ends[PEERS], pair[2];

	choices_begin(data, size);
	peers_init(&peers, -1);
	for (int i = 0; i < PEERS; i++) {
		if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
			abort();
		ends[i] = pair[0];
		peers.places[i] = (struct peer){ .fd = pair[1], .until_ms = now_ms + MPSD_KEEPER_PATIENCE_MS, .reply = { .fd = -1 } };
	}
	for (int i = 0; i < MOST_STEPS && choices_left() && !peers.stop; i++)
		step(&peers, &protocol, ends);
	for (int i = 0; i < PEERS; i++)
		if (ends[i] >= 0)
			close(ends[i]);
	for (int i = 0; i < 200; i++) { /* until all have been seen to have gone; TURN_REQUESTS at a time */
		peers.stop = false;
		serve(&peers, &protocol);
	}
	for (int i = 0; i < MPSD_KEEPER_PEERS; i++)
		must(peers.places[i].fd < 0, "those that have gone are forgotten");
	must(open_descriptors() == before + (int)protocol.table.count, "no descriptor leaks");
	table_clear(&protocol.table);
	return 0;
}
