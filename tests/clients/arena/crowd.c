/* Arenas by the thousand, writers that die, and a writer that never rests. */
#include "arena.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BATCH = 64, MOST_PIECES = 64 };

struct spent { /* milliseconds, all together; fill: opening it, and all allocations */
	double create, fill, commit, close;
};

static double lap(uint64_t *since_ns)
{
	double ms = client_ms_since(*since_ns);

	*since_ns = client_now_ns();
	return ms;
}

/* A memory that many can put, each by a separate descriptor. */
static int export_memory(struct program *program)
{
	CUmemAllocationProp prop;
	CUmemGenericAllocationHandle memory;
	int fd = -1;

	memset(&prop, 0, sizeof(prop));
	prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	prop.location.id = program->client.device;
	CLIENT_CHECK(&program->client, cuMemCreate(&memory, ARENA_GRANULE, &prop, 0), EXIT_WORK);
	CLIENT_CHECK(&program->client, cuMemExportToShareableHandle(&fd, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
		     EXIT_WORK);
	return fd;
}

static int put(struct mpsd_session *session, uint64_t id, uint64_t generation, uint64_t first_offset, const int *fds, unsigned count)
{
	unsigned char room[BATCH * 32 + 128];
	struct mpsd_pack pack;

	mpsd_pack_begin(&pack, room, sizeof(room));
	mpsd_pack_map(&pack, 3);
	mpsd_pack_text(&pack, "id");
	mpsd_pack_uint(&pack, id);
	mpsd_pack_text(&pack, "generation");
	mpsd_pack_uint(&pack, generation);
	mpsd_pack_text(&pack, "allocations");
	mpsd_pack_array(&pack, count);
	for (unsigned i = 0; i < count; i++) {
		mpsd_pack_array(&pack, 2);
		mpsd_pack_uint(&pack, first_offset + (uint64_t)i * ARENA_GRANULE);
		mpsd_pack_uint(&pack, ARENA_GRANULE);
	}
	return pack.failed ? -EMSGSIZE : mpsd_call(session, "arena.put", room, pack.used, fds, count, 1, 0, NULL);
}

/* Opens the arena without CUDA, as any program may by the protocol: its generation, or -errno. */
static int open_by_hand(struct mpsd_session *session, const char *name, uint64_t *id, uint64_t *generation)
{
	struct mpsd_answer answer;
	struct mpsd_unpack found;
	unsigned char room[512];
	struct mpsd_pack pack;
	int rc;

	mpsd_pack_begin(&pack, room, sizeof(room));
	mpsd_pack_map(&pack, 3);
	mpsd_pack_text(&pack, "name");
	mpsd_pack_text(&pack, name);
	mpsd_pack_text(&pack, "access");
	mpsd_pack_text(&pack, "write");
	mpsd_pack_text(&pack, "wait_seconds");
	mpsd_pack_double(&pack, 20);
	rc = mpsd_call(session, "arena.open", room, pack.used, NULL, 0, 1, 20, &answer);
	if (rc < 0)
		return rc;
	rc = -EPROTO;
	if (mpsd_unpack_find(&answer.result, "id", &found) == 0 && mpsd_unpack_uint(&found, id) == 0 &&
	    mpsd_unpack_find(&answer.result, "generation", &found) == 0 && mpsd_unpack_uint(&found, generation) == 0)
		rc = 0;
	mpsd_answer_clear(&answer);
	return rc;
}

/* Without a map for each: what mpsd alone costs.  All allocations are one memory, put again and again. */
static void fill_by_hand(struct program *program, const char *name, size_t count, int memory, uint64_t *id, uint64_t *generation)
{
	int fds[BATCH];

	must(program, "open", open_by_hand(program->session, name, id, generation));
	for (unsigned i = 0; i < BATCH; i++)
		fds[i] = memory;
	for (size_t done = 0; done < count; done += BATCH) {
		unsigned some = count - done < BATCH ? (unsigned)(count - done) : BATCH;

		must(program, "put", put(program->session, *id, *generation, done * ARENA_GRANULE, fds, some));
	}
}

/* "arena.commit" or "arena.close". */
static int end_by_hand(struct program *program, const char *method, uint64_t id, uint64_t generation)
{
	unsigned char room[128];
	struct mpsd_pack pack;
	bool is_commit = strcmp(method, "arena.commit") == 0;

	mpsd_pack_begin(&pack, room, sizeof(room));
	mpsd_pack_map(&pack, is_commit ? 3 : 1);
	mpsd_pack_text(&pack, "id");
	mpsd_pack_uint(&pack, id);
	if (is_commit) {
		mpsd_pack_text(&pack, "generation");
		mpsd_pack_uint(&pack, generation);
		mpsd_pack_text(&pack, "has_layout");
		mpsd_pack_bool(&pack, 0);
	}
	return mpsd_call(program->session, method, room, pack.used, NULL, 0, 1, 0, NULL);
}

/* One arena: made, filled with allocations, committed, closed. */
static void one_of_many(struct program *program, const char *name, size_t count, int memory, struct spent *spent)
{
	struct mpsd_arena_options options = { .capacity_bytes = ARENA_GRANULE * (uint64_t)count, .mode = 0600 };
	uint64_t since = client_now_ns(), address, id = 0, generation = 0;
	int rc = mpsd_arena_create(program->session, name, &options);

	if (rc != -EEXIST)
		must(program, "create", rc);
	spent->create += lap(&since);
	if (memory >= 0) {
		fill_by_hand(program, name, count, memory, &id, &generation);
		spent->fill += lap(&since);
		must(program, "commit", end_by_hand(program, "arena.commit", id, generation));
		spent->commit += lap(&since);
		must(program, "close", end_by_hand(program, "arena.close", id, generation));
	} else {
		must(program, "open", mpsd_arena_open(program->session, &program->driver, name, MPSD_WRITE, 10, &program->arena));
		for (size_t i = 0; i < count; i++)
			must(program, "alloc", mpsd_arena_alloc(program->arena, ARENA_GRANULE, &address));
		must(program, "flush", mpsd_arena_flush(program->arena));
		spent->fill += lap(&since);
		must(program, "commit", mpsd_arena_commit(program->arena, "many", 4));
		spent->commit += lap(&since);
		must(program, "close", mpsd_arena_close(program->arena));
	}
	spent->close += lap(&since);
}

static int many(struct program *program)
{
	uint64_t first = size_option(program, "--from", "0"), arenas = size_option(program, "--arenas", "10");
	size_t each = size_option(program, "--each", "100");
	bool is_shared = client_flag(&program->argc, program->argv, "--shared");
	struct spent spent = { 0 };
	char name[128];
	int memory = -1;

	client_start(&program->client);
	must(program, "driver", mpsd_driver_load(&program->driver, NULL, NULL));
	open_session(program);
	if (is_shared)
		memory = export_memory(program);
	for (uint64_t i = first; i < first + arenas; i++) {
		snprintf(name, sizeof(name), "%.100s-%llu", program->name, (unsigned long long)i);
		one_of_many(program, name, each, memory, &spent);
	}
	client_say(&program->client, "many", "create %.3f, open and fill %.3f, commit %.3f, close %.3f ms",
		   "\"create_ms\": %.4f, \"fill_ms\": %.4f, \"commit_ms\": %.4f, \"close_ms\": %.4f", spent.create / (double)arenas,
		   spent.fill / (double)arenas, spent.commit / (double)arenas, spent.close / (double)arenas);
	return 0;
}

/* Prints its descriptor, and keeps it open until it is ended, so that another process can take it by pidfd_getfd(2). */
static int lend(struct program *program)
{
	int fd;

	client_start(&program->client);
	fd = export_memory(program);
	client_say(&program->client, "lent", "descriptor %d", "\"fd\": %d", fd);
	while (pause() < 0)
		; /* for ever */
	return 0;
}

/* In a child, which never comes back: becomes the writer, gives memory that it does not commit, and is killed. */
static void die_as_writer(const char *name, int memory)
{
	struct mpsd_session *session = mpsd_session_open(NULL, "arena_client", NULL, 0);
	uint64_t id, generation;
	int fds[4] = { memory, memory, memory, memory };

	if (!session)
		_exit(EXIT_START);
	if (open_by_hand(session, name, &id, &generation) < 0)
		_exit(EXIT_USAGE);
	if (put(session, id, generation, 0, fds, 4) < 0)
		_exit(EXIT_WORK);
	raise(SIGKILL);
}

/* Children that are killed while they write: each must have been admitted after the one before.  They have no context: a
 * context takes too long for a thousand. */
static int crash(struct program *program)
{
	uint64_t cycles = size_option(program, "--cycles", "100"), began;
	struct mpsd_arena_options options = { .capacity_bytes = 64 << 20, .mode = 0600 };
	unsigned killed = 0, others = 0;
	int memory, rc, status;

	client_start(&program->client);
	memory = export_memory(program);
	open_session(program);
	rc = mpsd_arena_create(program->session, program->name, &options);
	if (rc != -EEXIST)
		must(program, "create", rc);
	began = client_now_ns();
	for (uint64_t i = 0; i < cycles; i++) {
		pid_t child = fork();

		if (child == 0)
			die_as_writer(program->name, memory);
		if (child < 0 || waitpid(child, &status, 0) != child)
			break;
		killed += WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
		others += !WIFSIGNALED(status);
	}
	client_say(&program->client, "crashed", "%u writers killed, %u refused, %.3f ms each", "\"killed\": %u, \"refused\": %u, \"each_ms\": %.4f",
		   killed, others, client_ms_since(began) / (double)cycles);
	return killed == cycles ? 0 : EXIT_WORK;
}

const struct command crowd_commands[] = {
	{ "many", many }, { "lend", lend }, { "crash", crash }, { NULL, NULL },
};
