/* SPDX-License-Identifier: MIT */
/* Fuzz: spoiled answers and a driver that fails, at the whole of the C client, under sanitizers, with a check of what must always
 * hold: whatever fails, nothing stays behind.
 * Usage: fuzz SECONDS [SEED].  Prints the seed first, so that a failure can be repeated (as far as threads can). */
#define MPSD_GREET_SECONDS 0.005
#define MPSD_ANSWER_SECONDS 0.02
#define MPSD_BATCH 3
#include "fake_mpsd.h"

#include <dirent.h>

enum { ROUNDS = 20 /* of one session */ };

static uint64_t state;
static pthread_mutex_t state_lock = PTHREAD_MUTEX_INITIALIZER;

static uint32_t any(uint32_t below)
{
	uint32_t made;

	pthread_mutex_lock(&state_lock);
	state ^= state << 13; /* xorshift64 */
	state ^= state >> 7;
	state ^= state << 17;
	made = (uint32_t)(state >> 32) % below;
	pthread_mutex_unlock(&state_lock);
	return made;
}

static void must(int holds, const char *what)
{
	if (holds)
		return;
	fprintf(stderr, "broken: %s\n", what);
	abort();
}

static int open_descriptors(void)
{
	DIR *directory = opendir("/proc/self/fd");
	int count = -3; /* "." and "..", and the directory itself */

	while (readdir(directory))
		count++;
	closedir(directory);
	return count;
}

/* A refusal, also of generations: then the next one is another. */
static void refuse(struct fake_answer *answer)
{
	static const int codes[] = { 1, 2, 7, 13, 16, 20, 21, 22, 22, 22, 23, 99, 0 };
	int code = codes[any(sizeof(codes) / sizeof(codes[0]))];
	struct mpsd_unpack at;
	uint32_t entries;
	uint64_t kind, id;

	mpsd_unpack_begin(&at, answer->bytes, answer->pack.used);
	must(!mpsd_unpack_array(&at, &entries) && !mpsd_unpack_uint(&at, &kind) && !mpsd_unpack_uint(&at, &id), "an answer");
	mpsd_pack_begin(&answer->pack, answer->bytes, sizeof(answer->bytes));
	mpsd_pack_array(&answer->pack, 4);
	mpsd_pack_uint(&answer->pack, 1);
	mpsd_pack_uint(&answer->pack, id);
	mpsd_pack_map(&answer->pack, 3);
	mpsd_pack_text(&answer->pack, "code");
	mpsd_pack_uint(&answer->pack, (uint64_t)code);
	mpsd_pack_text(&answer->pack, "name");
	mpsd_pack_text(&answer->pack, "A_NAME");
	mpsd_pack_text(&answer->pack, "message");
	mpsd_pack_text(&answer->pack, "words");
	mpsd_pack_nil(&answer->pack);
	pthread_mutex_lock(&other.lock);
	other.generation += code == 22;
	pthread_mutex_unlock(&other.lock);
}

/* Instead of the answer: the end, with a reason. */
static void part(struct fake_answer *answer)
{
	struct mpsd_pack *pack = &answer->pack;

	mpsd_pack_begin(pack, answer->bytes, sizeof(answer->bytes));
	mpsd_pack_array(pack, 3);
	mpsd_pack_uint(pack, 2);
	mpsd_pack_text(pack, any(4) ? "goodbye" : "some.event");
	mpsd_pack_array(pack, 1);
	mpsd_pack_map(pack, 1);
	mpsd_pack_text(pack, "code");
	mpsd_pack_uint(pack, any(2) ? MPSD_PROTOCOL : MPSD_TOO_MANY);
}

/* Mostly near to valid: pure noise never gets past the first byte. */
static void spoil(struct fake_answer *answer)
{
	static const unsigned char telling[] = { 0x00, 0x7f, 0x80, 0x90, 0x93, 0xc0, 0xc1, 0xc3, 0xca, 0xcb, 0xcf, 0xd3, 0xd9, 0xdb,
						 0xdc, 0xdd, 0xde, 0xdf, 0xff };
	unsigned char *bytes = answer->bytes;
	size_t *used = &answer->pack.used;

	if (any(4))
		return;
	switch (any(10)) {
	case 0:
		refuse(answer);
		break;
	case 1: /* hangs up */
		*used = 0;
		break;
	case 2:
		*used = any((uint32_t)*used);
		break;
	case 3:
		*used += any(5);
		break;
	case 4:
		if (answer->fd_count)
			close(answer->fds[--answer->fd_count]);
		break;
	case 5:
		answer->fds[answer->fd_count++] = memfd_create("more", MFD_CLOEXEC);
		break;
	case 6:
		part(answer);
		break;
	default:
		for (uint32_t left = 1 + any(3); left; left--)
			bytes[any((uint32_t)*used)] = any(2) ? telling[any(sizeof(telling))] : (unsigned char)any(256);
	}
}

static int count_granules(void *argument, const struct mpsd_allocation *one)
{
	*(long *)argument += (long)(one->bytes / MPSD_GRANULE);
	return 0;
}

/* What the arena says that it has is what is mapped, after every success and every failure. */
static void must_agree(struct mpsd_arena *arena)
{
	long granules = 0;

	must(mpsd_arena_for_each(arena, count_granules, &granules) == 0 && granules == fake.mappings, "what is there is mapped");
	must(fake.handles >= 0 && mpsd_arena_used_bytes(arena) / MPSD_GRANULE >= (uint64_t)granules, "what is mapped counts");
}

/* Whatever comes of it. */
static void use(struct mpsd_arena *arena)
{
	struct mpsd_allocation some[16];
	uint64_t address;
	size_t count;
	void *layout;
	int found;

	for (uint32_t left = any(any(8) ? 30 : 300); left; left--) {
		switch (any(14)) {
		case 0:
			mpsd_arena_flush(arena);
			break;
		case 10:
			mpsd_arena_refresh(arena);
			break;
		case 11:
			mpsd_arena_promoted(arena, other_generation() + any(2));
			break;
		case 12:
			mpsd_arena_yielded(arena);
			break;
		case 13:
			mpsd_arena_set_writable(arena, (int)any(2));
			break;
		case 1:
			mpsd_arena_commit(arena, any(2) ? "words" : NULL, 5);
			break;
		case 2:
			if (mpsd_arena_layout(arena, &layout, &count) == 0)
				free(layout);
			break;
		case 3:
			if (!any(8))
				mpsd_arena_seal(arena);
			break;
		case 4:
			mpsd_arena_set_guard(arena, any(3) * (uint64_t)MPSD_GRANULE);
			break;
		case 5:
		case 6:
			found = mpsd_arena_list(arena, 0, some, 16);
			if (found > 0)
				mpsd_arena_free(arena, some[any((uint32_t)found)].address);
			break;
		default:
			mpsd_arena_alloc(arena, 1 + any(8 * MPSD_GRANULE), &address);
		}
		must_agree(arena);
	}
}

static void round_of(struct mpsd_session *session)
{
	struct mpsd_arena *arena = NULL;

	fake.fail_permille = any(4) ? 0 : any(100);
	other.is_busy = any(3) == 0;
	if (mpsd_arena_open(session, &fake_driver, "arena", any(4) ? MPSD_WRITE : MPSD_READ, any(8) ? 0 : 0.01, &arena) == 0) {
		use(arena);
		mpsd_arena_close(arena);
	}
	must(fake.handles == 0, "every handle was released");
	must(fake.mappings == 0, "everything was unmapped");
	must(fake.windows == 0, "every window was freed");
}

int main(int argc, char **argv)
{
	time_t end = time(NULL) + (argc > 1 ? atoi(argv[1]) : 10);
	uint64_t rounds = 0, sessions = 0;
	struct mpsd_session *session;
	int before;

	state = argc > 2 ? strtoull(argv[2], NULL, 0) : (uint64_t)time(NULL) * 2654435761U + 1;
	printf("seed %llu\n", (unsigned long long)state);
	fflush(stdout);
	other.spoil = spoil;
	begin_other();
	before = open_descriptors();
	do {
		session = mpsd_session_open(other.address.sun_path, "fuzz", NULL, 0);
		if (!session)
			continue;
		mpsd_session_patience(session, 0.005, 0.005);
		for (int i = 0; i < ROUNDS; i++, rounds++)
			round_of(session);
		mpsd_session_close(session);
		other_is_quiet();
		must(open_descriptors() == before, "no descriptor leaks");
		sessions++;
	} while (time(NULL) < end);
	unlink(other.address.sun_path);
	printf("%llu rounds in %llu sessions, %ld calls of the driver: nothing broke\n", (unsigned long long)rounds,
	       (unsigned long long)sessions, fake.calls);
	return 0;
}
