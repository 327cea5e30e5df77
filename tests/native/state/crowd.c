/* SPDX-License-Identifier: MIT */
/*
 * crowd.c: one writer and some readers at once.  usage: crowd BYTES UPDATES threads | crowd BYTES KILLS kills SEED
 *
 * threads: readers are threads; each sees whole updates, never an older one than before, and the last one at the end.
 * kills: the writer is a process that publishes as fast as it can, killed at a random moment, KILLS times: its last reported
 * update, or the one after that, can be read.
 */
#define _GNU_SOURCE
#include <mpsd.h>

#include <signal.h>
#include <sys/wait.h>

#include "honest.h"

enum { READERS = 3 };

struct told { /* shared with the writer's process */
	uint64_t published;
	int fd;
};

struct reading {
	int fd;
	uint64_t updates;
	uint64_t reads, overtaken;
};

static uint64_t bytes;

static void *read_on(void *argument)
{
	struct reading *reading = argument;
	struct mpsd_state_reader *reader = NULL;
	struct mpsd_state_stamp stamp = {0, 0};
	uint64_t last = 0;
	const void *record;

	CHECK(mpsd_state_open(reading->fd, "", 1, &reader) == 0, "open");
	while (last < reading->updates) { /* the last one stays, so it is seen */
		int rc = mpsd_state_read(reader, &record, &stamp);

		CHECK(rc == 0 || rc == -EAGAIN || (rc == -ENODATA && !last), "%d after %" PRIu64, rc, last);
		if (rc == -EAGAIN)
			reading->overtaken++;
		if (rc < 0)
			continue;
		CHECK(stamp.sequence >= last, "%" PRIu64 " after %" PRIu64, stamp.sequence, last);
		CHECK(is_honest(record, bytes, stamp.sequence), "update %" PRIu64 " is a mixture", stamp.sequence);
		last = stamp.sequence;
		reading->reads++;
	}
	mpsd_state_reader_close(reader);
	return NULL;
}

static void run_threads(uint64_t updates)
{
	struct reading readings[READERS];
	pthread_t threads[READERS];
	struct mpsd_state *state = NULL;

	CHECK(mpsd_state_create("", bytes, 1, &state) == 0, "create");
	for (int i = 0; i < READERS; i++) {
		readings[i] = (struct reading){mpsd_state_fd(state), updates, 0, 0};
		CHECK(pthread_create(&threads[i], NULL, read_on, &readings[i]) == 0, "thread");
	}
	for (uint64_t n = 1; n <= updates; n++)
		CHECK(honest_publish(state, n) == 0, "publish");
	for (int i = 0; i < READERS; i++) {
		pthread_join(threads[i], NULL);
		printf("reads %" PRIu64 ", overtaken %" PRIu64 "\n", readings[i].reads, readings[i].overtaken);
	}
	mpsd_state_close(state);
}

static void publish_on(struct told *told)
{
	struct mpsd_state *state = NULL;

	CHECK(mpsd_state_create("", bytes, 1, &state) == 0, "create");
	__atomic_store_n(&told->fd, mpsd_state_fd(state), __ATOMIC_RELEASE);
	for (uint64_t n = 1;; n++) {
		CHECK(honest_publish(state, n) == 0, "publish");
		__atomic_store_n(&told->published, n, __ATOMIC_RELEASE);
	}
}

/* The writer's descriptor, opened anew and for reading alone, when it has published `least`. */
static int open_of(pid_t pid, const struct told *told, uint64_t least)
{
	char path[64];
	int fd;

	while (__atomic_load_n(&told->published, __ATOMIC_ACQUIRE) < least)
		CHECK(waitpid(pid, NULL, WNOHANG) == 0, "the writer has ended");
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, told->fd);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0, "%s: %s", path, strerror(errno));
	return fd;
}

static void kill_one(struct told *told, uint64_t *seed, uint64_t *in_the_middle)
{
	struct mpsd_state_reader *reader = NULL;
	struct mpsd_state_stamp stamp = {0, 0};
	const void *record = NULL;
	uint64_t begun = 0;
	pid_t pid;
	int fd;

	memset(told, 0, sizeof(*told));
	pid = fork();
	CHECK(pid >= 0, "fork");
	if (!pid)
		publish_on(told);
	fd = open_of(pid, told, 1 + next_random(seed) % 2000);
	CHECK(mpsd_state_open(fd, "", 1, &reader) == 0, "open");
	close(fd);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	CHECK(mpsd_state_read(reader, &record, &stamp) == 0, "read");
	CHECK(stamp.sequence == told->published || stamp.sequence == told->published + 1, "%" PRIu64 " where %" PRIu64 " was told",
	      stamp.sequence, told->published);
	CHECK(is_honest(record, bytes, stamp.sequence), "update %" PRIu64 " is a mixture", stamp.sequence);
	for (unsigned slot = 0; slot < MPSD_STATE_SLOTS; slot++)
		begun += reader->control->mark[slot] % 2;
	*in_the_middle += begun;
	mpsd_state_reader_close(reader);
}

static void run_kills(uint64_t kills, uint64_t seed)
{
	struct told *told = mmap(NULL, sizeof(*told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	uint64_t in_the_middle = 0;

	CHECK(told != MAP_FAILED, "mmap");
	for (uint64_t i = 0; i < kills; i++)
		kill_one(told, &seed, &in_the_middle);
	printf("killed %" PRIu64 ", in the middle of an update %" PRIu64 "\n", kills, in_the_middle);
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return 2;
	bytes = strtoull(argv[1], NULL, 10);
	if (!strcmp(argv[3], "threads"))
		run_threads(strtoull(argv[2], NULL, 10));
	else if (argc == 5)
		run_kills(strtoull(argv[2], NULL, 10), strtoull(argv[4], NULL, 10));
	return 0;
}
