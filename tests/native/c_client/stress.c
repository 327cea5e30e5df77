/* SPDX-License-Identifier: MIT */
/* Stress: threads that share one session and one arena, while connections break now and then.  Built with ThreadSanitizer.
 * Usage: stress THREADS ROUNDS.  Prints PASS last. */
#define MPSD_BATCH 2
#include "fake_mpsd.h"

static struct mpsd_session *session;
static struct mpsd_arena *arena;
static int rounds;

/* One in fifty is not answered: the connection ends. */
static void break_off(struct fake_answer *answer)
{
	static int count;

	if (__atomic_add_fetch(&count, 1, __ATOMIC_RELAXED) % 50 == 0)
		answer->pack.used = 0;
}

static int count_one(void *argument, const struct mpsd_allocation *one)
{
	*(uint64_t *)argument += one->bytes;
	return 0;
}

static void *work(void *argument)
{
	uint64_t own[4] = { 0, 0, 0, 0 }, bytes;
	struct mpsd_allocation found;
	long wrong = 0;
	size_t count;
	void *layout;

	for (int i = 0; i < rounds; i++) {
		uint64_t *place = &own[i % 4];

		if (*place)
			wrong += mpsd_arena_free(arena, *place) != 0;
		*place = 0;
		wrong += mpsd_arena_alloc(arena, MPSD_GRANULE, place) != 0;
		wrong += mpsd_arena_find(arena, *place + 5, &found) != 0 || found.address != *place;
		bytes = 0;
		wrong += mpsd_arena_for_each(arena, count_one, &bytes) != 0 || !bytes;
		wrong += mpsd_call(session, "health", NULL, 0, NULL, 0, 1, 0, NULL) != 0;
		wrong += mpsd_arena_free(arena, 12345) != -ENOENT || !strstr(mpsd_error(session), "0x3039");
		if (i % 8 == 0)
			wrong += mpsd_arena_commit(arena, "words", 5) != 0;
		if (mpsd_arena_layout(arena, &layout, &count) == 0)
			free(layout);
		else
			wrong++;
		wrong += mpsd_arena_used_bytes(arena) == 0 || mpsd_arena_generation(arena) == 0;
	}
	(void)argument;
	return (void *)wrong;
}

int main(int argc, char **argv)
{
	int threads = argc > 1 ? atoi(argv[1]) : 4;
	pthread_t ids[64];
	long wrong = 0;
	void *own;

	rounds = argc > 2 ? atoi(argv[2]) : 50;
	other.spoil = break_off;
	begin_other();
	session = mpsd_session_open(other.address.sun_path, "stress", NULL, 0);
	if (!session || mpsd_arena_open(session, &fake_driver, "arena", MPSD_WRITE, 0, &arena) < 0)
		return 2;
	for (int i = 0; i < threads && i < 64; i++)
		if (pthread_create(&ids[i], NULL, work, NULL) != 0)
			return 2;
	for (int i = 0; i < threads && i < 64; i++) {
		pthread_join(ids[i], &own);
		wrong += (long)own;
	}
	wrong += mpsd_arena_close(arena) != 0;
	mpsd_session_close(session);
	other_is_quiet();
	unlink(other.address.sun_path);
	printf("%ld wrong, %ld handles, %ld windows, %ld mappings\n", wrong, fake.handles, fake.windows, fake.mappings);
	if (wrong || fake.handles || fake.windows || fake.mappings)
		return 1;
	puts("PASS");
	return 0;
}
