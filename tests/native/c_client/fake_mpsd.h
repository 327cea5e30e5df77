/* SPDX-License-Identifier: MIT */
/* The other end of the socket, in a thread: answers as mpsd does for one arena, or as `spoil` changes the answers.  Its only state is
 * a number: each commit has three allocations, the first of which is as old as the arena, and one more each second time; and
 * a second read may find the next commit.  That is enough for a client to go through all of its paths. */
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
	uint64_t commit;
	int is_busy; /* others commit, each time that it is opened */
	int talkers; /* connections */
} other = { .listener = -1, .lock = PTHREAD_MUTEX_INITIALIZER, .generation = 1, .commit = 1 };

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

/* Waits until all connections have ended: then this end has only the listening descriptor. */
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

static uint64_t other_commit(int change)
{
	uint64_t commit;

	pthread_mutex_lock(&other.lock);
	other.commit += other.is_busy ? (uint64_t)change : 0;
	commit = other.commit;
	pthread_mutex_unlock(&other.lock);
	return commit;
}

/* So many more fields follow. */
static void answer_arena(struct mpsd_pack *pack, uint32_t others)
{
	mpsd_pack_map(pack, 12 + others);
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
	mpsd_pack_text(pack, "state_serial");
	mpsd_pack_uint(pack, 0);
	mpsd_pack_text(pack, "is_sealed");
	mpsd_pack_bool(pack, 0);
	mpsd_pack_text(pack, "openings");
	mpsd_pack_uint(pack, 1);
	mpsd_pack_text(pack, "commit");
	mpsd_pack_uint(pack, other_commit(0));
}

/* Allocations from the given one on, of the two or three after the first; the first is of commit 1, the others of the
 * last one. */
static void answer_items(struct fake_answer *answer, uint64_t from, uint64_t until, uint64_t known, uint64_t commit)
{
	struct mpsd_pack *pack = &answer->pack;

	mpsd_pack_text(pack, "items");
	mpsd_pack_array(pack, (uint32_t)(until - from));
	for (uint64_t i = from; i < until; i++) {
		uint64_t since = i ? commit : 1;

		mpsd_pack_array(pack, 3);
		mpsd_pack_uint(pack, i * MPSD_GRANULE);
		mpsd_pack_uint(pack, MPSD_GRANULE);
		mpsd_pack_uint(pack, since);
		if (since > known)
			answer->fds[answer->fd_count++] = memfd_create("item", MFD_CLOEXEC);
	}
}

/* All but the last one come with the answer to open, so that there are two pages. */
static void answer_open(struct fake_answer *answer, uint64_t known)
{
	uint64_t commit = other_commit(1);
	int fd = memfd_create("layout", MFD_CLOEXEC);

	if (ftruncate(fd, 5) < 0)
		abort();
	answer->fds[answer->fd_count++] = fd;
	answer_arena(&answer->pack, 3);
	mpsd_pack_text(&answer->pack, "has_layout");
	mpsd_pack_bool(&answer->pack, 1);
	answer_items(answer, 0, 2 + commit % 2, known, commit);
	mpsd_pack_text(&answer->pack, "next");
	mpsd_pack_uint(&answer->pack, (1 + commit % 2) * MPSD_GRANULE);
}

static void answer_take(struct fake_answer *answer, uint64_t known)
{
	uint64_t commit = other_commit(0);

	mpsd_pack_map(&answer->pack, 3);
	mpsd_pack_text(&answer->pack, "commit");
	mpsd_pack_uint(&answer->pack, commit);
	answer_items(answer, 2 + commit % 2, 3 + commit % 2, known, commit);
	mpsd_pack_text(&answer->pack, "next");
	mpsd_pack_nil(&answer->pack);
}

/* Of a request that was read. */
static void answer_to(struct fake_answer *answer, uint64_t id, const char *method, size_t bytes, struct mpsd_unpack *params)
{
	struct mpsd_pack *pack = &answer->pack;
	uint64_t known = 0, takes = 0;
	uint32_t entries;

	mpsd_pack_begin(pack, answer->bytes, sizeof(answer->bytes));
	answer->fd_count = 0;
	mpsd_pack_array(pack, 4);
	mpsd_pack_uint(pack, 1);
	mpsd_pack_uint(pack, id);
	mpsd_pack_nil(pack);
	if (mpsd_unpack_array(params, &entries) == 0 && entries) {
		mpsd_unpack_find_uint(params, "known", &known);
		mpsd_unpack_find_uint(params, "takes", &takes);
	}
	if (bytes == 10 && !memcmp(method, "arena.take", bytes))
		answer_take(answer, known);
	else if (takes)
		answer_open(answer, known);
	else
		answer_arena(pack, 0);
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
			abort(); /* the client itself never breaks the protocol */
		answer_to(&answer, id, method, length, &at);
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
