/* SPDX-License-Identifier: MIT */
/*
 * hostile.c: a reader of memory that another process has changed.  usage: hostile SEED ROUNDS SECONDS
 *
 * Each round takes the image of an honest state, damages it in one of many ways, some of which the seals would prevent, and
 * reads: the result is an error, or an honest update.  Then, for SECONDS, a thread continues to damage it while others read.
 */
#define _GNU_SOURCE
#include <mpsd.h>

#include "honest.h"

enum { WORDS = 40, BYTES = WORDS * 8, UPDATES = 9, KINDS = 10 };

static uint64_t seed;
static size_t image_bytes, shared_bytes;
static unsigned char *honest[UPDATES + 1]; /* images: after each update */
static uint64_t outcomes[2];               /* an error, an honest record */

static uint64_t below(uint64_t bound)
{
	return next_random(&seed) % bound;
}

static void take_images(void)
{
	struct mpsd_state *state = NULL;

	CHECK(mpsd_state_create("words u64 40 0\n", BYTES, 7, &state) == 0, "create");
	shared_bytes = mpsd_state_shared_bytes(mpsd_state_lines(BYTES));
	image_bytes = MPSD_STATE_CONTROL_AT + shared_bytes;
	for (uint64_t n = 0; n <= UPDATES; n++) {
		CHECK(!n || honest_publish(state, n) == 0, "publish");
		honest[n] = malloc(image_bytes);
		CHECK(honest[n] && pread(mpsd_state_fd(state), honest[n], image_bytes, 0) == (ssize_t)image_bytes, "image");
	}
	mpsd_state_close(state);
}

/* A whole number of words, from somewhere in an image. */
static void copy_words(unsigned char *to, const unsigned char *from, size_t at, size_t words)
{
	memcpy(to + at, from + at, words * 8);
}

/* What is shared, not the head: a place of a word, and how many words from there on may be taken. */
static size_t shared_place(size_t *most)
{
	size_t word = below(shared_bytes / 8);

	*most = shared_bytes / 8 - word;
	return MPSD_STATE_CONTROL_AT + word * 8;
}

static void exchange_lines(unsigned char *lines, size_t one, size_t other)
{
	unsigned char kept[64];

	memcpy(kept, lines + one * 64, 64);
	memmove(lines + one * 64, lines + other * 64, 64);
	memcpy(lines + other * 64, kept, 64);
}

static void damage(unsigned char *image, uint64_t kind)
{
	struct mpsd_state_control *control = (struct mpsd_state_control *)(void *)(image + MPSD_STATE_CONTROL_AT);
	const unsigned char *other = honest[below(UPDATES + 1)];
	size_t most, at = shared_place(&most);

	switch (kind) {
	case 0: /* one bit, anywhere in what is shared */
		image[at + below(8)] ^= (unsigned char)(1 << below(8));
		break;
	case 1: /* random bytes over a range */
		for (size_t i = 0, count = below(most * 8) + 1; i < count; i++)
			image[at + i] = (unsigned char)next_random(&seed);
		break;
	case 2: /* zeros over a range */
		memset(image + at, 0, below(most * 8) + 1);
		break;
	case 3: /* a range as it was at another time: a mixture of two updates */
		copy_words(image, other, at, below(most) + 1);
		break;
	case 4: /* another time's control line: marks and digests that were honest once */
		memcpy(control, other + MPSD_STATE_CONTROL_AT, sizeof(*control));
		break;
	case 5: /* marks that are plausible, of updates that are not there */
		for (uint64_t slot = 0, last = below(20); slot < MPSD_STATE_SLOTS; slot++)
			control->mark[slot] = 2 * (last - (last - slot) % MPSD_STATE_SLOTS);
		break;
	case 6: /* marks at the end of their range */
		control->mark[below(MPSD_STATE_SLOTS)] = ~(uint64_t)0 - below(16);
		break;
	case 7: /* two lines have changed places */
		exchange_lines(image + MPSD_STATE_CONTROL_AT + sizeof(*control), below(shared_bytes / 64 - 1), below(shared_bytes / 64 - 1));
		break;
	case 8: /* a byte of the head */
		image[below(sizeof(struct mpsd_state_head))] = (unsigned char)next_random(&seed);
		break;
	default: /* a number of the head */
		((uint64_t *)(void *)image)[below(6)] = below(2) ? next_random(&seed) : below(1 << 21);
		break;
	}
}

/* A sealed memfd with these bytes, as anybody could make it; `length` of them. */
static int forge(const unsigned char *image, size_t length)
{
	int fd = memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	CHECK(fd >= 0 && ftruncate(fd, (off_t)length) == 0, "memfd");
	CHECK(pwrite(fd, image, length, 0) == (ssize_t)length, "pwrite");
	CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0, "seal");
	return fd;
}

static void read_checked(struct mpsd_state_reader *reader)
{
	struct mpsd_state_stamp stamp = {0, 0};
	const void *record = NULL;
	int rc = mpsd_state_read(reader, &record, &stamp);

	CHECK(rc == 0 || rc == -EPROTO || rc == -ENODATA || rc == -EAGAIN, "%d", rc);
	outcomes[rc == 0]++;
	if (rc < 0)
		CHECK(!record && !stamp.sequence, "an output was touched");
	else
		CHECK(stamp.generation == 7 && stamp.sequence >= 1 && stamp.sequence <= UPDATES &&
			      is_honest(record, BYTES, stamp.sequence), "update %" PRIu64 " is a mixture", stamp.sequence);
	mpsd_state_latest(reader);
}

static void play(uint64_t round)
{
	struct mpsd_state_reader *reader = NULL;
	unsigned char *image = malloc(image_bytes);
	size_t length = below(16) ? image_bytes : below(image_bytes);
	int fd, rc;

	CHECK(image, "memory");
	memcpy(image, honest[below(UPDATES + 1)], image_bytes);
	for (uint64_t times = below(3) + 1; times; times--)
		damage(image, (round + times) % KINDS);
	fd = forge(image, length);
	rc = mpsd_state_open(fd, NULL, 1, &reader);
	close(fd);
	if (rc == 0) {
		read_checked(reader);
		CHECK(length == image_bytes, "a short file was taken");
	} else {
		CHECK(rc == -EPROTO || rc == -EPROTONOSUPPORT, "%d", rc);
		CHECK(!reader, "an output was touched");
		outcomes[0]++;
	}
	mpsd_state_reader_close(reader);
	free(image);
}

/* -- while it is read --------------------------------------------------------------------------------------------- */

struct crowd {
	unsigned char *shared; /* of the forged memfd */
	int fd;
	int is_over;
};

static void *go_on_damaging(void *argument)
{
	struct crowd *crowd = argument;
	unsigned char *image = malloc(image_bytes);

	CHECK(image, "memory");
	while (!__atomic_load_n(&crowd->is_over, __ATOMIC_RELAXED)) {
		memcpy(image, honest[below(UPDATES) + 1], image_bytes);
		if (below(2))
			damage(image, below(8)); /* the head was read long ago */
		for (size_t i = 0; i < shared_bytes; i += 8) /* whole words, as a program's stray writes mostly are */
			__atomic_store_n((uint64_t *)(void *)(crowd->shared + i),
					 *(uint64_t *)(void *)(image + MPSD_STATE_CONTROL_AT + i), __ATOMIC_RELAXED);
	}
	free(image);
	return NULL;
}

static void read_meanwhile(double seconds)
{
	struct crowd crowd = {NULL, forge(honest[UPDATES], image_bytes), 0};
	struct mpsd_state_reader *reader = NULL;
	struct timespec from, at;
	pthread_t thread;

	crowd.shared = mmap(NULL, shared_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, crowd.fd, MPSD_STATE_CONTROL_AT);
	CHECK(crowd.shared != MAP_FAILED, "mmap");
	CHECK(mpsd_state_open(crowd.fd, NULL, 7, &reader) == 0, "open");
	CHECK(pthread_create(&thread, NULL, go_on_damaging, &crowd) == 0, "thread");
	clock_gettime(CLOCK_MONOTONIC, &from);
	do {
		for (int i = 0; i < 1000; i++)
			read_checked(reader);
		clock_gettime(CLOCK_MONOTONIC, &at);
	} while ((double)(at.tv_sec - from.tv_sec) + (double)(at.tv_nsec - from.tv_nsec) / 1e9 < seconds);
	__atomic_store_n(&crowd.is_over, 1, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
	mpsd_state_reader_close(reader);
	munmap(crowd.shared, shared_bytes);
	close(crowd.fd);
}

int main(int argc, char **argv)
{
	uint64_t rounds;

	if (argc != 4)
		return 2;
	seed = strtoull(argv[1], NULL, 10);
	rounds = strtoull(argv[2], NULL, 10);
	take_images();
	for (uint64_t round = 0; round < rounds; round++)
		play(round);
	printf("damaged %" PRIu64 ", honest %" PRIu64 "\n", outcomes[0], outcomes[1]);
	outcomes[0] = outcomes[1] = 0;
	read_meanwhile(strtod(argv[3], NULL));
	printf("meanwhile damaged %" PRIu64 ", honest %" PRIu64 "\n", outcomes[0], outcomes[1]);
	for (uint64_t n = 0; n <= UPDATES; n++)
		free(honest[n]);
	return 0;
}
