/* SPDX-License-Identifier: MIT */
/*
 * walk.c: every step of the code itself, one at a time.  usage: walk BYTES twice|once
 *
 * The writer is a coroutine that is stopped before each of its stores.  Dying: it is stopped before every store of some updates,
 * and a reader that comes then finds the last complete one.  Overtaking: a reader is stopped before every load, and the writer
 * makes any number of steps at that point; `twice`: before two loads of one read.  Prints the number of reads.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <ucontext.h>

static void step(void);
#define MPSD_STATE_STEP() step()
#include <mpsd.h>

#include "honest.h"

enum { UPDATES = 7, BREAKS = 2, STACK = 1 << 16 };

static ucontext_t outside, writer;
static char stack[STACK];
static struct mpsd_state *state;
static uint64_t bytes, begun, completed; /* updates */
static uint64_t budget, made;            /* stores that the writer may make yet, and has made */
static int is_writing, is_over;

static uint64_t loads, stops[BREAKS], amounts[BREAKS]; /* before which load the writer goes on, and how far */
static uint64_t least;                                 /* complete when the read began */

static void writing(void)
{
	for (uint64_t n = 1; n <= UPDATES; n++) {
		begun = n;
		CHECK(honest_publish(state, n) == 0, "update %" PRIu64, n);
		completed = n;
	}
	is_over = 1;
}

/* The writer makes up to `steps` stores. */
static void go_on(uint64_t steps)
{
	budget = steps;
	if (!steps || is_over)
		return;
	is_writing = 1;
	swapcontext(&outside, &writer);
	is_writing = 0;
}

static void step(void)
{
	if (is_writing) {
		while (!budget) {
			is_writing = 0;
			swapcontext(&writer, &outside);
		}
		budget--;
		made++;
		return;
	}
	for (int i = 0; i < BREAKS; i++)
		if (loads == stops[i])
			go_on(amounts[i]);
	loads++;
}

/* As after mpsd_state_create, which would take most of the time here. */
static void begin(void)
{
	memset(state->control, 0, mpsd_state_shared_bytes(state->lines));
	memset(state->record, 0, state->own_bytes);
	memset(state->sum, 0, sizeof(state->sum));
	state->published.sequence = 0;
	CHECK(mpsd_state_changed(state, 0, bytes) == 0, "changed");
	begun = completed = made = 0;
	is_over = 0;
	getcontext(&writer);
	writer.uc_stack.ss_sp = stack;
	writer.uc_stack.ss_size = STACK;
	writer.uc_link = &outside;
	makecontext(&writer, writing, 0);
}

/* One read; `loads` counts its loads.  Its result must be right. */
static void read_once(struct mpsd_state_reader *reader)
{
	struct mpsd_state_stamp stamp = {0, 0};
	const void *record = NULL;
	int rc;

	loads = 0;
	least = completed;
	rc = mpsd_state_read(reader, &record, &stamp);
	if (rc == -ENODATA) {
		CHECK(least == 0, "no record, though %" PRIu64 " were complete", least);
		return;
	}
	CHECK(rc == 0, "%d, %" PRIu64 " stores made, stops %" PRIu64 " %" PRIu64, rc, made, stops[0], stops[1]);
	CHECK(stamp.sequence >= least, "%" PRIu64 " of at least %" PRIu64, stamp.sequence, least);
	CHECK(stamp.sequence <= begun, "%" PRIu64 " of at most %" PRIu64, stamp.sequence, begun);
	CHECK(is_honest(record, bytes, stamp.sequence), "a mixture, said to be %" PRIu64, stamp.sequence);
}

/* Stopped before its store `at`; the store that ends an update completes it, though `completed` does not count it yet. */
static void die_at(uint64_t at, const uint64_t *ends_of, struct mpsd_state_reader *reader)
{
	struct mpsd_state_stamp stamp = {0, 0};
	uint64_t whole = 0;
	const void *record;
	int rc;

	begin();
	go_on(at);
	while (whole < UPDATES && ends_of[whole] <= at)
		whole++;
	rc = mpsd_state_read(reader, &record, &stamp);
	CHECK(rc == (whole ? 0 : -ENODATA), "%d after %" PRIu64 " stores", rc, at);
	CHECK(stamp.sequence == whole, "%" PRIu64 " instead of %" PRIu64, stamp.sequence, whole);
	CHECK(!whole || is_honest(record, bytes, whole), "not what update %" PRIu64 " was", whole);
	CHECK(mpsd_state_latest(reader) == whole, "latest");
}

static uint64_t overtake(uint64_t stores, int is_twice, struct mpsd_state_reader *reader)
{
	uint64_t reads = 0, most_loads = 2 * (MPSD_STATE_SLOTS + bytes / 8 + 2); /* of one that has to try again */

	for (uint64_t from = 0; from <= stores; from++)
		for (stops[0] = 0; stops[0] <= most_loads; stops[0]++)
			for (amounts[0] = 1; from + amounts[0] <= stores; amounts[0]++)
				for (stops[1] = is_twice ? stops[0] + 1 : 0; stops[1] <= (is_twice ? most_loads : 0); stops[1]++) {
					amounts[1] = is_twice ? stores / 6 + 2 : 0; /* more than one update */
					begin();
					go_on(from);
					read_once(reader);
					reads++;
				}
	return reads;
}

int main(int argc, char **argv)
{
	uint64_t ends_of[UPDATES], stores;
	struct mpsd_state_reader *reader = NULL;

	if (argc != 3)
		return 2;
	bytes = strtoull(argv[1], NULL, 10);
	stops[0] = stops[1] = ~(uint64_t)0;
	CHECK(mpsd_state_create("", bytes, 1, &state) == 0, "create");
	CHECK(mpsd_state_open(mpsd_state_fd(state), "", 1, &reader) == 0, "open");
	begin();
	for (uint64_t told = 0; !is_over;) { /* where each update ends */
		go_on(1);
		while (told < completed)
			ends_of[told++] = made;
	}
	stores = made;
	for (uint64_t at = 0; at <= stores; at++)
		die_at(at, ends_of, reader);
	printf("dying %" PRIu64 "\n", stores + 1);
	printf("overtaking %" PRIu64 "\n", overtake(stores, !strcmp(argv[2], "twice"), reader));
	mpsd_state_reader_close(reader);
	mpsd_state_close(state);
	return 0;
}
