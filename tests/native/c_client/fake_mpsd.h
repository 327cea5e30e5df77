/* SPDX-License-Identifier: MIT */
/* The other end of the socket, in a thread: answers as mpsd does for one arena, or whatever `spoil` makes of it.  It keeps nothing,
 * and gives the same three allocations always: enough for a client to go through all of its paths. */
#ifndef MPSD_TEST_FAKE_MPSD_H
#define MPSD_TEST_FAKE_MPSD_H

#include "fake_driver.h"

struct fake_answer {
	struct mpsd_pack pack;
	unsigned char bytes[MPSD_DATAGRAM_BYTES];
	int fds[MPSD_DESCRIPTORS];
	unsigned fd_count;
};

static struct {
	struct sockaddr_un address;
	int listener;
	void (*spoil)(struct fake_answer *answer); /* NULL: nothing is changed */
	pthread_mutex_t lock;                       /* protects all below */
	uint64_t generation;
	int talkers; /* connections */
} other = { .listener = -1, .lock = PTHREAD_MUTEX_INITIALIZER, .generation = 1 };

static uint64_t other_generation(void)
{
	uint64_t generation;

	pthread_mutex_lock(&other.lock);
	generation = other.generation;
	pthread_mutex_unlock(&other.lock);
	return generation;
}

static void other_talks(int change)
{
	pthread_mutex_lock(&other.lock);
	other.talkers += change;
	pthread_mutex_unlock(&other.lock);
}

/* Waits until all connections are over: then this end has no descriptor but the listening one. */
static void other_is_quiet(void)
{
	int talkers = 1;

	while (talkers) {
		pthread_mutex_lock(&other.lock);
		talkers = other.talkers;
		pthread_mutex_unlock(&other.lock);
		mpsd_nap(0.0005);
	}
}

static void answer_arena(struct mpsd_pack *pack)
{
	mpsd_pack_map(pack, 9);
	mpsd_pack_text(pack, "id");
	mpsd_pack_uint(pack, 7);
	mpsd_pack_text(pack, "gpu");
	mpsd_pack_text(pack, FAKE_GPU);
	mpsd_pack_text(pack, "base");
	mpsd_pack_uint(pack, (uint64_t)0x200000000000);
	mpsd_pack_text(pack, "window_bytes");
	mpsd_pack_uint(pack, (uint64_t)1 << 30);
	mpsd_pack_text(pack, "capacity_bytes");
	mpsd_pack_uint(pack, (uint64_t)1 << 30);
	mpsd_pack_text(pack, "allocations");
	mpsd_pack_uint(pack, 0);
	mpsd_pack_text(pack, "layout_bytes");
	mpsd_pack_uint(pack, 5);
	mpsd_pack_text(pack, "generation");
	mpsd_pack_uint(pack, other_generation());
	mpsd_pack_text(pack, "is_sealed");
	mpsd_pack_bool(pack, 0);
}

static void answer_take(struct fake_answer *answer)
{
	struct mpsd_pack *pack = &answer->pack;

	mpsd_pack_map(pack, 2);
	mpsd_pack_text(pack, "items");
	mpsd_pack_array(pack, 3);
	for (unsigned i = 0; i < 3; i++) {
		mpsd_pack_array(pack, 2);
		mpsd_pack_uint(pack, (uint64_t)i * MPSD_GRANULE);
		mpsd_pack_uint(pack, MPSD_GRANULE);
		answer->fds[answer->fd_count++] = memfd_create("item", MFD_CLOEXEC);
	}
	mpsd_pack_text(pack, "next");
	mpsd_pack_nil(pack);
}

static void answer_layout(struct fake_answer *answer)
{
	int fd = memfd_create("layout", MFD_CLOEXEC);

	if (ftruncate(fd, 5) < 0)
		abort();
	mpsd_pack_map(&answer->pack, 1);
	mpsd_pack_text(&answer->pack, "layout_bytes");
	mpsd_pack_uint(&answer->pack, 5);
	answer->fds[answer->fd_count++] = fd;
}

/* Of a request that was read. */
static void answer_to(struct fake_answer *answer, uint64_t id, const char *method, size_t bytes)
{
	struct mpsd_pack *pack = &answer->pack;

	mpsd_pack_begin(pack, answer->bytes, sizeof(answer->bytes));
	answer->fd_count = 0;
	mpsd_pack_array(pack, 4);
	mpsd_pack_uint(pack, 1);
	mpsd_pack_uint(pack, id);
	mpsd_pack_nil(pack);
	if (bytes == 10 && !memcmp(method, "arena.take", bytes))
		answer_take(answer);
	else if (bytes == 12 && !memcmp(method, "arena.layout", bytes))
		answer_layout(answer);
	else
		answer_arena(pack);
}

static void talk_with(int fd)
{
	static __thread struct fake_answer answer;
	static __thread unsigned char bytes[MPSD_DATAGRAM_BYTES];
	struct mpsd_unpack at;
	unsigned fd_count;
	int fds[MPSD_DESCRIPTORS];
	const char *method;
	uint32_t entries;
	uint64_t kind, id;
	size_t count, length;

	while (mpsd_wire_receive(fd, bytes, &count, fds, &fd_count, mpsd_now() + 60) == 0) {
		mpsd_close_all(fds, fd_count);
		mpsd_unpack_begin(&at, bytes, count);
		if (mpsd_unpack_array(&at, &entries) < 0 || mpsd_unpack_uint(&at, &kind) < 0 || mpsd_unpack_uint(&at, &id) < 0 ||
		    mpsd_unpack_text(&at, &method, &length) < 0)
			abort(); /* the client itself never says anything wrong */
		answer_to(&answer, id, method, length);
		if (other.spoil)
			other.spoil(&answer);
		if (answer.pack.used)
			mpsd_wire_send(fd, answer.bytes, answer.pack.used, answer.fds, answer.fd_count, mpsd_now() + 60);
		mpsd_close_all(answer.fds, answer.fd_count);
		if (!answer.pack.used)
			break;
	}
	close(fd);
}

static void *talk(void *argument)
{
	talk_with((int)(intptr_t)argument);
	other_talks(-1);
	return NULL;
}

static void *listen_for_ever(void *argument)
{
	pthread_t thread;
	int fd;

	(void)argument;
	while ((fd = accept4(other.listener, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
		other_talks(1);
		if (pthread_create(&thread, NULL, talk, (void *)(intptr_t)fd) != 0)
			abort();
		pthread_detach(thread);
	}
	return NULL;
}

static void begin_other(void)
{
	pthread_t thread;

	other.address.sun_family = AF_UNIX;
	snprintf(other.address.sun_path, sizeof(other.address.sun_path), "/tmp/mpsd-fake-%d.sock", (int)getpid());
	unlink(other.address.sun_path);
	other.listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (bind(other.listener, (struct sockaddr *)&other.address, sizeof(other.address)) < 0 || listen(other.listener, 64) < 0 ||
	    pthread_create(&thread, NULL, listen_for_ever, NULL) != 0)
		abort();
	pthread_detach(thread);
}

#endif
