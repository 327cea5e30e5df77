/* SPDX-License-Identifier: MIT */
/*
 * keep: GPU memory that outlives the process.  The first run makes an arena, fills it, commits, and dies.  The next run adopts
 * it
 * at the same addresses and checks every word.
 *
 *     keep NAME [MEGABYTES]       prints "filled ..." or "adopted ..."; kills itself with SIGKILL after filling
 *
 * C11 and C++17.  Build: clients/c/Makefile.
 */
#include <mpsd.h>

#include <cuda.h>
#include <signal.h>

static int failed(struct mpsd_session *session, const char *what, int rc)
{
	fprintf(stderr, "keep: %s: %s: %s\n", what, strerror(-rc), mpsd_error(session));
	return 1;
}

static uint32_t word_at(uint64_t index)
{
	return (uint32_t)(index * 2654435761u + 12345u);
}

/* Every word its own value.  0, or a CUresult. */
static int fill(uint64_t address, uint64_t bytes)
{
	uint32_t *words = (uint32_t *)malloc((size_t)bytes);
	CUresult rc;

	if (!words)
		return (int)CUDA_ERROR_OUT_OF_MEMORY;
	for (uint64_t i = 0; i < bytes / sizeof(*words); i++)
		words[i] = word_at(i);
	rc = cuMemcpyHtoD(address, words, (size_t)bytes);
	free(words);
	return (int)rc;
}

/* How many words are wrong; all of them where they cannot be read. */
static uint64_t check(uint64_t address, uint64_t bytes)
{
	uint32_t *words = (uint32_t *)malloc((size_t)bytes);
	uint64_t wrong = 0;

	if (!words || cuMemcpyDtoH(words, address, (size_t)bytes) != CUDA_SUCCESS)
		wrong = bytes / sizeof(*words);
	for (uint64_t i = 0; words && !wrong && i < bytes / sizeof(*words); i++)
		wrong += words[i] != word_at(i);
	free(words);
	return wrong;
}

static int first_run(struct mpsd_session *session, struct mpsd_arena *arena, uint64_t bytes)
{
	static const char layout[] = "words";
	uint64_t address;
	int rc = mpsd_arena_alloc(arena, bytes, &address);

	if (rc < 0)
		return failed(session, "allocating", rc);
	rc = fill(address, bytes);
	if (rc) {
		fprintf(stderr, "keep: filling: CUDA error %d\n", rc);
		return 1;
	}
	rc = mpsd_arena_commit(arena, layout, strlen(layout));
	if (rc < 0)
		return failed(session, "committing", rc);
	printf("filled 0x%llx %llu\n", (unsigned long long)address, (unsigned long long)bytes);
	fflush(stdout);
	raise(SIGKILL); /* nothing is tidied up: that is the point */
	return 1;
}

static int next_run(struct mpsd_session *session, struct mpsd_arena *arena, const struct mpsd_allocation *found)
{
	uint64_t wrong = check(found->address, found->bytes);
	size_t count;
	void *layout;
	int rc = mpsd_arena_layout(arena, &layout, &count);

	if (rc < 0)
		return failed(session, "reading the layout", rc);
	printf("adopted 0x%llx %llu generation %llu layout %.*s wrong %llu\n", (unsigned long long)found->address,
	       (unsigned long long)found->bytes, (unsigned long long)mpsd_arena_generation(arena), (int)count,
	       (const char *)layout, (unsigned long long)wrong);
	free(layout);
	rc = mpsd_arena_close(arena);
	return rc < 0 ? failed(session, "closing", rc) : wrong != 0;
}

static int open_context(void)
{
	CUcontext context;
	CUdevice device;

	return cuInit(0) != CUDA_SUCCESS || cuDeviceGet(&device, 0) != CUDA_SUCCESS ||
	       cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS || cuCtxSetCurrent(context) != CUDA_SUCCESS;
}

int main(int argc, char **argv)
{
	uint64_t bytes = (uint64_t)(argc > 2 ? atoi(argv[2]) : 16) << 20;
	struct mpsd_arena_options options;
	struct mpsd_allocation found;
	struct mpsd_session *session;
	struct mpsd_driver driver;
	struct mpsd_arena *arena;
	char why[256];
	int rc;

	if (argc < 2 || open_context() || mpsd_driver_load(&driver, NULL, NULL) < 0) {
		fprintf(stderr, argc < 2 ? "keep NAME [MEGABYTES]\n" : "keep: no GPU\n");
		return 2;
	}
	session = mpsd_session_open(NULL, "keep", why, sizeof(why));
	if (!session) {
		fprintf(stderr, "keep: %s\n", why);
		return 2;
	}
	memset(&options, 0, sizeof(options));
	options.capacity_bytes = bytes;
	rc = mpsd_arena_create(session, argv[1], &options);
	if (rc < 0 && rc != -EEXIST)
		return failed(session, "creating", rc);
	rc = mpsd_arena_open(session, &driver, argv[1], MPSD_WRITE, 30, &arena); /* until the one before is fenced */
	if (rc < 0)
		return failed(session, "opening", rc);
	rc = mpsd_arena_list(arena, 0, &found, 1) == 1 ? next_run(session, arena, &found) : first_run(session, arena, bytes);
	mpsd_session_close(session);
	return rc;
}
