/* Programs that go on where the last process ended. */
#include "arena.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCKS = 256, THREADS = 256, WEIGHTS = 0, FIRST, SECOND, CONTROL, PARTS };
enum { WORD_DONE = 0, WORD_SPUN = 8 }; /* offsets in CONTROL */

struct run {
	CUdeviceptr part[PARTS];
	uint64_t bytes; /* of each but CONTROL */
	uint64_t steps, spin_cycles, fault_at;
	bool is_adopted;
};

/* Each part is a separate allocation; their order in the layout identifies them. */
static void make_parts(struct program *program, struct run *run)
{
	struct piece pieces[PARTS];

	for (int i = 0; i < PARTS; i++) {
		run->part[i] = get_memory(program, i == CONTROL ? ARENA_GRANULE : run->bytes);
		pieces[i] = (struct piece){ run->part[i] - mpsd_arena_base(program->arena), run->bytes, program->seed };
	}
	fill_memory(program, run->part[WEIGHTS], run->bytes, program->seed);
	fill_memory(program, run->part[FIRST], run->bytes, program->seed + 1);
	CLIENT_CHECK(&program->client, cuMemsetD8(run->part[CONTROL], 0, ARENA_GRANULE), EXIT_WORK);
	finish(program);
	commit_pieces(program, pieces, PARTS);
}

static void find_parts(struct program *program, struct run *run)
{
	struct piece *pieces;
	size_t count = read_pieces(program, &pieces);

	run->is_adopted = count == PARTS;
	if (!count)
		return make_parts(program, run);
	for (size_t i = 0; i < count && i < PARTS; i++)
		run->part[i] = mpsd_arena_base(program->arena) + pieces[i].offset;
	run->bytes = pieces[WEIGHTS].bytes;
	free(pieces);
}

/* A process that ends in the middle of a step leaves the step's input as it was, and the step is repeated. */
static void step(struct program *program, struct run *run, uint64_t number)
{
	CUdeviceptr from = run->part[number % 2 ? SECOND : FIRST], to = run->part[number % 2 ? FIRST : SECOND];
	CUdeviceptr done = run->part[CONTROL] + WORD_DONE, spun = run->part[CONTROL] + WORD_SPUN;
	uint64_t words = run->bytes / 8;
	void *advance[] = { &from, &to, &words, &number }, *spin[] = { &spun, &run->spin_cycles }, *count[] = { &done };
	void *wrong[] = { &done };
	struct client *client = &program->client;

	if (number == run->fault_at)
		CLIENT_CHECK(client, client_launch(client_kernel(client, "oob_write"), 1, 1, wrong), EXIT_WORK);
	CLIENT_CHECK(client, client_launch(client_kernel(client, "advance"), BLOCKS, THREADS, advance), EXIT_WORK);
	CLIENT_CHECK(client, client_launch(client_kernel(client, "spin"), 1, 1, spin), EXIT_WORK);
	CLIENT_CHECK(client, client_launch(client_kernel(client, "count_up"), 1, 1, count), EXIT_WORK);
	CLIENT_CHECK(client, cuCtxSynchronize(), EXIT_WORK);
}

/* FNV-1a over words: of what the host reads back. */
static uint64_t digest(struct program *program, CUdeviceptr at, uint64_t bytes)
{
	uint64_t *copy = malloc(bytes), sum = 0xcbf29ce484222325u;

	if (!copy)
		exit(EXIT_WORK);
	CLIENT_CHECK(&program->client, cuMemcpyDtoH(copy, at, bytes), EXIT_WORK);
	for (uint64_t i = 0; i < bytes / 8; i++)
		sum = (sum ^ copy[i]) * 0x100000001b3u;
	free(copy);
	return sum;
}

static int work(struct program *program)
{
	struct run run = { .bytes = size_option(program, "--bytes", "64M"), .steps = size_option(program, "--steps", "100") };
	double wait = number_option(program, "--wait", "30"), open_ms;
	uint64_t before, began;
	CUdeviceptr bad;

	run.spin_cycles = (uint64_t)(number_option(program, "--step-ms", "2") * CYCLES_PER_MS);
	run.fault_at = size_option(program, "--fault-at", "1000000000");
	client_start(&program->client);
	bad = plain_word(program);
	client_say(&program->client, "begins", "begins", "");
	before = client_now_ns();
	open_arena(program, 4 * run.bytes + ARENA_GRANULE, MPSD_WRITE, wait);
	open_ms = client_ms_since(before);
	find_parts(program, &run);
	began = read_word(program, run.part[CONTROL]);
	client_say(&program->client, "ready", "from step %llu on, arena open after %.3f ms",
		   "\"step\": %llu, \"open_ms\": %.4f, \"is_adopted\": %s, \"generation\": %llu", (unsigned long long)began, open_ms,
		   run.is_adopted ? "true" : "false", (unsigned long long)mpsd_arena_generation(program->arena));
	for (uint64_t number = began; number < run.steps; number++) {
		step(program, &run, number);
		client_say(&program->client, "step", "step %llu", "\"step\": %llu", (unsigned long long)number);
	}
	check_memory(program, run.part[WEIGHTS], run.bytes, program->seed, bad);
	finish(program);
	client_say(&program->client, "end", "digest %016llx, %llu words of the weights wrong",
		   "\"digest\": \"%016llx\", \"wrong\": %llu, \"steps\": %llu",
		   (unsigned long long)digest(program, run.part[run.steps % 2 ? SECOND : FIRST], run.bytes),
		   (unsigned long long)read_word(program, bad), (unsigned long long)run.steps);
	must(program, "close", mpsd_arena_close(program->arena));
	return 0;
}

static uint64_t watch(struct program *program, CUdeviceptr counter, double ms)
{
	CUdeviceptr changes = plain_word(program);
	uint64_t cycles = (uint64_t)(ms * CYCLES_PER_MS);
	void *parameters[] = { &counter, &cycles, &changes };

	CLIENT_CHECK(&program->client, client_launch(client_kernel(&program->client, "still"), 1, 1, parameters), EXIT_WORK);
	finish(program);
	return read_word(program, changes);
}

/* Admitted as the writer, it looks whether the last one still writes; then counts in kernel after kernel until it is killed. */
static int fence(struct program *program)
{
	double wait = number_option(program, "--wait", "60"), watch_ms = number_option(program, "--watch-ms", "100");
	uint64_t cycles = (uint64_t)(number_option(program, "--ms", "500") * CYCLES_PER_MS), admitted_ns, before, after, seen;
	CUdeviceptr counter;
	struct piece *pieces;
	void *parameters[] = { &counter, &cycles };
	CUfunction tick;

	client_start(&program->client);
	tick = client_kernel(&program->client, "tick");
	client_say(&program->client, "waiting", "waiting", "");
	open_arena(program, 64 << 20, MPSD_WRITE, wait);
	admitted_ns = client_now_ns();
	if (!read_pieces(program, &pieces)) {
		struct piece piece = { 0, ARENA_GRANULE, 0 };

		counter = get_memory(program, piece.bytes);
		piece.offset = counter - mpsd_arena_base(program->arena);
		CLIENT_CHECK(&program->client, cuMemsetD8(counter, 0, piece.bytes), EXIT_WORK);
		commit_pieces(program, &piece, 1);
	} else {
		counter = mpsd_arena_base(program->arena) + pieces->offset;
	}
	free(pieces);
	before = read_word(program, counter);
	seen = watch(program, counter, watch_ms);
	after = read_word(program, counter);
	client_say(&program->client, "admitted", "counter %llu, then %llu; seen to change %llu times",
		   "\"admitted_ns\": %llu, \"before\": %llu, \"after\": %llu, \"seen\": %llu, \"generation\": %llu",
		   (unsigned long long)admitted_ns, (unsigned long long)before, (unsigned long long)after, (unsigned long long)seen,
		   (unsigned long long)mpsd_arena_generation(program->arena));
	for (unsigned launched = 0;; launched++) {
		CLIENT_CHECK(&program->client, client_launch(tick, 1, 1, parameters), EXIT_WORK);
		if (!launched)
			client_say(&program->client, "running", "counting", "");
		finish(program);
	}
}

const struct command work_commands[] = { { "work", work }, { "fence", fence }, { NULL, NULL } };
