/* What memory costs: plain, in an arena, taken over, and read again from a file. */
#include "arena.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK = 64 << 20 };

static CUmemAllocationProp on_device(struct program *program)
{
	CUmemAllocationProp prop;

	memset(&prop, 0, sizeof(prop));
	prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	prop.location.id = program->client.device;
	return prop;
}

static uint64_t *many_words(size_t count)
{
	uint64_t *words = calloc(count, sizeof(*words));

	if (!words)
		exit(EXIT_WORK);
	return words;
}

static int plain_alloc(struct program *program, uint64_t bytes, size_t count)
{
	CUdeviceptr *memory = (CUdeviceptr *)many_words(count);
	uint64_t before = client_now_ns();
	double alloc_ms;

	for (size_t i = 0; i < count; i++)
		CLIENT_CHECK(&program->client, cuMemAlloc(&memory[i], bytes), EXIT_WORK);
	alloc_ms = client_ms_since(before);
	before = client_now_ns();
	for (size_t i = 0; i < count; i++)
		CLIENT_CHECK(&program->client, cuMemFree(memory[i]), EXIT_WORK);
	client_say(&program->client, "plain", "cuMemAlloc %.3f ms, cuMemFree %.3f ms", "\"alloc_ms\": %.4f, \"free_ms\": %.4f", alloc_ms,
		   client_ms_since(before));
	free(memory);
	return 0;
}

/* Access is set for each on its own, as an allocator would: it gets one request after the other. */
static int plain_vmm(struct program *program, uint64_t bytes, size_t count)
{
	CUmemGenericAllocationHandle *memory = (CUmemGenericAllocationHandle *)many_words(count);
	CUmemAllocationProp prop = on_device(program);
	CUmemAccessDesc access = { .location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	double create_ms, map_ms;
	uint64_t before, began;
	CUdeviceptr at;

	CLIENT_CHECK(&program->client, cuMemAddressReserve(&at, bytes * count, 0, 0, 0), EXIT_WORK);
	began = before = client_now_ns();
	for (size_t i = 0; i < count; i++)
		CLIENT_CHECK(&program->client, cuMemCreate(&memory[i], bytes, &prop, 0), EXIT_WORK);
	create_ms = client_ms_since(before);
	before = client_now_ns();
	for (size_t i = 0; i < count; i++) {
		CLIENT_CHECK(&program->client, cuMemMap(at + i * bytes, bytes, 0, memory[i], 0), EXIT_WORK);
		CLIENT_CHECK(&program->client, cuMemSetAccess(at + i * bytes, bytes, &access, 1), EXIT_WORK);
	}
	map_ms = client_ms_since(before);
	client_say(&program->client, "plain", "create %.3f ms, map and set access %.3f ms, together %.3f ms",
		   "\"create_ms\": %.4f, \"map_ms\": %.4f, \"alloc_ms\": %.4f", create_ms, map_ms, client_ms_since(began));
	CLIENT_CHECK(&program->client, cuMemUnmap(at, bytes * count), EXIT_WORK);
	for (size_t i = 0; i < count; i++)
		CLIENT_CHECK(&program->client, cuMemRelease(memory[i]), EXIT_WORK);
	free(memory);
	return 0;
}

static int plain(struct program *program)
{
	uint64_t bytes = size_option(program, "--bytes", "2M");
	size_t count = size_option(program, "--count", "1");

	if (program->argc != 3)
		client_usage("arena_client plain alloc|vmm [--bytes N] [--count N]");
	client_start(&program->client);
	return strcmp(program->argv[2], "alloc") == 0 ? plain_alloc(program, bytes, count) : plain_vmm(program, bytes, count);
}

/* The seed of each is its own: memory that lies in another's place is seen. */
static double fill_all(struct program *program, const struct piece *pieces, size_t count)
{
	uint64_t before = client_now_ns();

	for (size_t i = 0; i < count; i++)
		fill_memory(program, mpsd_arena_base(program->arena) + pieces[i].offset, pieces[i].bytes, pieces[i].seed);
	finish(program);
	return client_ms_since(before);
}

static int write_memory(struct program *program)
{
	uint64_t bytes = size_option(program, "--bytes", "2M"), before, worst_ns = 0;
	size_t count = size_option(program, "--count", "1");
	uint64_t capacity = size_option(program, "--capacity", "0");
	struct piece *pieces = (struct piece *)many_words(count * (sizeof(*pieces) / 8));
	double open_ms, alloc_ms, hold_ms;

	client_start(&program->client);
	before = client_now_ns();
	open_arena(program, capacity ? capacity : bytes * count, MPSD_WRITE, number_option(program, "--wait", "10"));
	open_ms = client_ms_since(before);
	before = client_now_ns();
	for (size_t i = 0; i < count; i++) {
		uint64_t one = client_now_ns(), offset = get_memory(program, bytes) - mpsd_arena_base(program->arena);

		pieces[i] = (struct piece){ offset, bytes, program->seed ^ offset };
		one = client_now_ns() - one;
		worst_ns = one > worst_ns ? one : worst_ns;
	}
	alloc_ms = client_ms_since(before);
	must(program, "flush", mpsd_arena_flush(program->arena));
	hold_ms = client_ms_since(before);
	fill_all(program, pieces, count);
	before = client_now_ns();
	commit_pieces(program, pieces, count);
	client_say(&program->client, "wrote", "open %.3f ms, %zu allocations %.3f ms, all held after %.3f ms, commit %.3f ms",
		   "\"open_ms\": %.4f, \"count\": %zu, \"alloc_ms\": %.4f, \"hold_ms\": %.4f, \"commit_ms\": %.4f, \"worst_ms\": %.4f, "
		   "\"generation\": %llu",
		   open_ms, count, alloc_ms, hold_ms, client_ms_since(before), (double)worst_ns / 1e6,
		   (unsigned long long)mpsd_arena_generation(program->arena));
	free(pieces);
	return 0;
}

struct seen {
	size_t count;
	uint64_t bytes;
};

static int count_one(void *argument, const struct mpsd_allocation *allocation)
{
	struct seen *seen = argument;

	seen->count++;
	seen->bytes += allocation->bytes;
	return 0;
}

/* The mapped memory and the layout are of one commit: the same number, sizes and contents. */
static int adopt(struct program *program)
{
	bool is_reader = client_flag(&program->argc, program->argv, "--read");
	struct piece *pieces;
	struct seen seen = { 0 };
	uint64_t before, bytes = 0;
	double open_ms, check_ms;
	CUdeviceptr bad;
	size_t count;

	client_start(&program->client);
	bad = plain_word(program);
	before = client_now_ns();
	open_arena(program, 0, is_reader ? MPSD_READ : MPSD_WRITE, number_option(program, "--wait", "10"));
	open_ms = client_ms_since(before);
	count = read_pieces(program, &pieces);
	before = client_now_ns();
	for (size_t i = 0; i < count; i++) {
		bytes += pieces[i].bytes;
		check_memory(program, mpsd_arena_base(program->arena) + pieces[i].offset, pieces[i].bytes, pieces[i].seed, bad);
	}
	finish(program);
	check_ms = client_ms_since(before);
	mpsd_arena_for_each(program->arena, count_one, &seen);
	client_say(&program->client, "adopted", "%zu allocations, %llu bytes after %.3f ms; check %.3f ms: %llu words wrong, %s",
		   "\"count\": %zu, \"bytes\": %llu, \"open_ms\": %.4f, \"check_ms\": %.4f, \"wrong\": %llu, \"is_whole\": %s, \"generation\": %llu",
		   count, (unsigned long long)bytes, open_ms, check_ms, (unsigned long long)read_word(program, bad),
		   seen.count == count && seen.bytes == bytes ? "true" : "false",
		   (unsigned long long)mpsd_arena_generation(program->arena));
	free(pieces);
	return 0;
}

/* From a file through two pinned buffers: one is filled while the other is on its way. */
static int reload(struct program *program)
{
	uint64_t bytes = size_option(program, "--bytes", "1G"), done = 0, before;
	int fd = open(text_option(program, "--file", "/dev/null"), O_RDONLY | O_CLOEXEC);
	CUevent sent[2];
	void *buffer[2];
	CUdeviceptr to;

	if (fd < 0)
		client_usage("arena_client reload --file FILE --bytes N [--cold]");
	client_start(&program->client);
	CLIENT_CHECK(&program->client, cuMemAlloc(&to, CHUNK), EXIT_WORK); /* the speed of a copy does not depend on where to */
	for (int i = 0; i < 2; i++) {
		CLIENT_CHECK(&program->client, cuMemAllocHost(&buffer[i], CHUNK), EXIT_WORK);
		CLIENT_CHECK(&program->client, cuEventCreate(&sent[i], 0), EXIT_WORK);
	}
	if (client_flag(&program->argc, program->argv, "--cold"))
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	before = client_now_ns();
	for (unsigned turn = 0; done < bytes; turn ^= 1) {
		ssize_t got;

		CLIENT_CHECK(&program->client, cuEventSynchronize(sent[turn]), EXIT_WORK);
		got = read(fd, buffer[turn], bytes - done < CHUNK ? bytes - done : CHUNK);
		if (got <= 0)
			break;
		CLIENT_CHECK(&program->client, cuMemcpyHtoDAsync(to, buffer[turn], (size_t)got, NULL), EXIT_WORK);
		CLIENT_CHECK(&program->client, cuEventRecord(sent[turn], NULL), EXIT_WORK);
		done += (uint64_t)got;
	}
	finish(program);
	client_say(&program->client, "reloaded", "%llu bytes in %.1f ms", "\"bytes\": %llu, \"ms\": %.3f", (unsigned long long)done,
		   client_ms_since(before));
	close(fd);
	return done == bytes ? 0 : EXIT_WORK;
}

static int info(struct program *program)
{
	size_t unused, total;

	client_start(&program->client);
	CLIENT_CHECK(&program->client, cuMemGetInfo(&unused, &total), EXIT_WORK);
	client_say(&program->client, "memory", "%zu of %zu bytes are free", "\"free\": %zu, \"total\": %zu", unused, total);
	return 0;
}

/* Prints the descriptor of exported memory, and keeps it open until it is ended, so that another process can take it by pidfd_getfd(2). */
static int lend(struct program *program)
{
	CUmemAllocationProp prop;
	CUmemGenericAllocationHandle memory;
	int fd = -1;

	client_start(&program->client);
	prop = on_device(program);
	CLIENT_CHECK(&program->client, cuMemCreate(&memory, ARENA_GRANULE, &prop, 0), EXIT_WORK);
	CLIENT_CHECK(&program->client, cuMemExportToShareableHandle(&fd, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
		     EXIT_WORK);
	client_say(&program->client, "lent", "descriptor %d", "\"fd\": %d", fd);
	while (pause() < 0)
		; /* for ever */
	return 0;
}

const struct command memory_commands[] = {
	{ "plain", plain }, { "write", write_memory }, { "adopt", adopt }, { "reload", reload }, { "info", info }, { "lend", lend },
	{ NULL, NULL },
};
