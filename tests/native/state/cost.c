/* SPDX-License-Identifier: MIT */
/*
 * cost.c: the time of a publish, and of a read.  usage: cost BYTES CHANGED TIMES still|followed|cold
 *
 * CHANGED bytes of a record of BYTES are changed before each publish, at a place that moves.  still: no process reads at that time.
 * followed: another process reads as fast as it can.  cold: between publishes 8 MiB of other memory are written, as in a program
 * that also does other work.  Prints nanoseconds as JSON: median, p99 and mean of publishes; of reads of another process.
 */
#define _GNU_SOURCE
#include <mpsd.h>

#include <sys/wait.h>

#if defined(__x86_64__)
#include <x86intrin.h>
static inline uint64_t now(void) /* in any unit; after all that came before it, and before all that follows */
{
	uint64_t ticks;

	_mm_lfence();
	ticks = __rdtsc();
	_mm_lfence();
	return ticks;
}
#else
static inline uint64_t now(void)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
}
#endif

struct findings {
	double median, p99, mean, reads_median, reads_p99;
	uint64_t reads, overtaken;
};

static double ns_per_tick(void)
{
	struct timespec from, to;
	uint64_t begun = now(), ended;

	clock_gettime(CLOCK_MONOTONIC, &from);
	do {
		clock_gettime(CLOCK_MONOTONIC, &to);
		ended = now();
	} while ((to.tv_sec - from.tv_sec) * 1000000000L + to.tv_nsec - from.tv_nsec < 20000000L);
	return (double)((to.tv_sec - from.tv_sec) * 1000000000L + to.tv_nsec - from.tv_nsec) / (double)(ended - begun);
}

static int ascending(const void *one, const void *other)
{
	uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;

	return a < b ? -1 : a > b;
}

/* What an empty stretch takes is not counted. */
static uint64_t clock_cost(void)
{
	uint64_t least = ~(uint64_t)0;

	for (int i = 0; i < 1000; i++) {
		uint64_t begun = now(), ticks = now() - begun;

		least = ticks < least ? ticks : least;
	}
	return least;
}

static void sum_up(uint64_t *ticks, uint64_t count, double *median, double *p99, double *mean)
{
	double ns = ns_per_tick(), sum = 0;
	uint64_t own = clock_cost();

	qsort(ticks, count, sizeof(*ticks), ascending);
	for (uint64_t i = 0; i < count; i++)
		sum += (double)(ticks[i] > own ? ticks[i] - own : 0);
	*median = count ? ((double)ticks[count / 2] - (double)own) * ns : 0;
	*p99 = count ? ((double)ticks[count * 99 / 100] - (double)own) * ns : 0;
	if (mean)
		*mean = count ? sum / (double)count * ns : 0;
}

static void publish(struct mpsd_state *state, uint64_t changed, uint64_t times, int is_cold, struct findings *found)
{
	uint64_t bytes = mpsd_state_bytes(state), *ticks = calloc(times, sizeof(*ticks)), at = 0;
	unsigned char *record = mpsd_state_record(state), *other = malloc(8 << 20);

	for (uint64_t i = 0; i < times; i++, at = at + 2 * changed <= bytes ? at + changed : 0) {
		uint64_t begun;

		if (is_cold)
			memset(other, (int)i, 8 << 20);
		memset(record + at, (int)i, changed);
		begun = now();
		if (mpsd_state_update(state, at, changed) < 0)
			exit(2);
		ticks[i] = now() - begun;
	}
	sum_up(ticks, times, &found->median, &found->p99, &found->mean);
	free(other);
	free(ticks);
}

/* Reads until the writer hangs up, or `times` times; the reads that gave a record. */
static void follow(int fd, int hang_up, uint64_t times, struct findings *found)
{
	uint64_t *ticks = calloc(times, sizeof(*ticks)), count = 0;
	struct pollfd end = {.fd = hang_up, .events = POLLIN};
	struct mpsd_state_reader *reader = NULL;
	struct mpsd_state_stamp stamp;
	const void *record;

	if (mpsd_state_open(fd, NULL, 1, &reader) < 0)
		exit(2);
	while (count < times && (count % 64 || poll(&end, 1, 0) == 0)) {
		uint64_t begun = now();
		int rc = mpsd_state_read(reader, &record, &stamp);

		if (rc == 0)
			ticks[count++] = now() - begun;
		else if (rc == -EAGAIN)
			found->overtaken++;
		else if (rc != -ENODATA)
			exit(3);
		if (rc < 0 && poll(&end, 1, 0) != 0)
			break;
	}
	found->reads = count;
	sum_up(ticks, count, &found->reads_median, &found->reads_p99, NULL);
	mpsd_state_reader_close(reader);
	free(ticks);
}

int main(int argc, char **argv)
{
	struct findings *found = mmap(NULL, sizeof(*found), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	uint64_t bytes, changed, times;
	struct mpsd_state *state = NULL;
	int ends[2], status = 0;
	pid_t reader = 0;

	if (argc != 5 || found == MAP_FAILED || pipe(ends) < 0)
		return 2;
	bytes = strtoull(argv[1], NULL, 10);
	changed = strtoull(argv[2], NULL, 10);
	times = strtoull(argv[3], NULL, 10);
	if (mpsd_state_create("", bytes, 1, &state) < 0)
		return 2;
	for (int i = 0; i < MPSD_STATE_SLOTS; i++) /* the first publish of each slot writes all of the record */
		mpsd_state_publish(state);
	if (!strcmp(argv[4], "followed") && (reader = fork()) == 0) {
		close(ends[1]);
		follow(mpsd_state_fd(state), ends[0], 4 * times, found);
		_exit(0);
	}
	publish(state, changed, times, !strcmp(argv[4], "cold"), found);
	close(ends[1]);
	if (reader)
		waitpid(reader, &status, 0);
	else
		follow(mpsd_state_fd(state), -1, times, found); /* poll ignores an entry with -1 */
	mpsd_state_close(state);
	printf("{\"median\": %.1f, \"p99\": %.1f, \"mean\": %.1f, \"reads\": %llu, \"overtaken\": %llu, \"reads_median\": %.1f, "
	       "\"reads_p99\": %.1f}\n", found->median, found->p99, found->mean, (unsigned long long)found->reads,
	       (unsigned long long)found->overtaken, found->reads_median, found->reads_p99);
	return status ? 3 : 0;
}
