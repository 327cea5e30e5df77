/* wild MODE [--bytes N] [--beyond N] [--after S] [--json]: one access outside its allocations, among memory that must not change.
 *
 *   overrun, underrun     N bytes behind the last, before the first of three allocations
 *   use_after_free        the one in the middle, after it was freed
 *   near_null             an element of an array whose address is null, 64 KiB or more from it
 *
 * A plain program: it knows nothing of mpsd, arenas or the shield.  It continues afterwards, if it can: it reports the result of the
 * access, whether the next call works, and how many words of its memory are wrong.  Exit status 0: no call failed. */
#include "client.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COUNT = 3, MIDDLE = 1, BLOCKS = 256, THREADS = 256, NEAR_NULL = 0x20000 };

struct memory {
	CUdeviceptr at[COUNT];
	CUdeviceptr bad;
	uint64_t bytes;
};

static void launch(struct client *client, const char *kernel, CUdeviceptr at, uint64_t words, uint64_t seed, CUdeviceptr bad)
{
	void *parameters[] = { &at, &words, &seed, &bad };

	CLIENT_CHECK(client, client_launch(client_kernel(client, kernel), BLOCKS, THREADS, parameters), EXIT_WORK);
}

static void prepare(struct client *client, struct memory *memory)
{
	client_start(client);
	CLIENT_CHECK(client, cuMemAlloc(&memory->bad, 4096), EXIT_WORK);
	CLIENT_CHECK(client, cuMemsetD8(memory->bad, 0, 4096), EXIT_WORK);
	for (unsigned i = 0; i < COUNT; i++) {
		CLIENT_CHECK(client, cuMemAlloc(&memory->at[i], memory->bytes), EXIT_WORK);
		launch(client, "fill", memory->at[i], memory->bytes / 8, i, 0);
	}
	CLIENT_CHECK(client, cuCtxSynchronize(), EXIT_WORK);
}

/* Where the access goes; 0: no such mode. */
static CUdeviceptr target(struct client *client, struct memory *memory, const char *mode, uint64_t beyond)
{
	CUdeviceptr first = memory->at[0], last = memory->at[0], freed = memory->at[MIDDLE];

	for (unsigned i = 1; i < COUNT; i++) {
		first = memory->at[i] < first ? memory->at[i] : first;
		last = memory->at[i] > last ? memory->at[i] : last;
	}
	if (strcmp(mode, "overrun") == 0)
		return last + memory->bytes + beyond;
	if (strcmp(mode, "underrun") == 0)
		return first - 8 - beyond;
	if (strcmp(mode, "near_null") == 0)
		return NEAR_NULL + beyond;
	if (strcmp(mode, "use_after_free") != 0)
		return 0;
	CLIENT_CHECK(client, cuMemFree(freed), EXIT_WORK);
	memory->at[MIDDLE] = 0;
	return freed + beyond;
}

/* The number of words that are not what they were. */
static uint64_t look(struct client *client, struct memory *memory)
{
	uint64_t wrong = 0;

	for (unsigned i = 0; i < COUNT; i++)
		if (memory->at[i])
			launch(client, "check", memory->at[i], memory->bytes / 8, i, memory->bad);
	CLIENT_CHECK(client, cuMemcpyDtoH(&wrong, memory->bad, sizeof(wrong)), EXIT_WORK);
	return wrong;
}

int main(int argc, char **argv)
{
	struct memory memory;
	struct client client;
	uint64_t beyond, began_ns;
	double after;
	CUdeviceptr at;
	void *parameters[] = { &at };
	CUresult rc;

	client_options(&client, "wild", &argc, argv);
	memory.bytes = strtoull(client_option(&argc, argv, "--bytes", "16777216"), NULL, 10);
	beyond = strtoull(client_option(&argc, argv, "--beyond", "64"), NULL, 10);
	after = atof(client_option(&argc, argv, "--after", "0"));
	if (argc != 2)
		client_usage("wild overrun|underrun|use_after_free|near_null [--bytes N] [--beyond N] [--after S] [--json]");
	prepare(&client, &memory);
	client_say(&client, "ready", "ready", "");
	usleep((useconds_t)(after * 1e6));
	at = target(&client, &memory, argv[1], beyond);
	if (!at)
		client_usage("wild overrun|underrun|use_after_free|near_null [--bytes N] [--beyond N] [--after S] [--json]");
	client_say(&client, "fault", "%s at 0x%llx now", "\"mode\": \"%s\", \"address\": %llu", argv[1], (unsigned long long)at);
	began_ns = client_now_ns();
	rc = client_launch(client_kernel(&client, "use_after_free"), 1, 1, parameters); /* it writes to its parameter */
	rc = rc == CUDA_SUCCESS ? cuCtxSynchronize() : rc;
	client_say(&client, "result", "%d after %.2f ms", "\"code\": %d, \"ms\": %.3f", (int)rc, client_ms_since(began_ns));
	if (rc != CUDA_SUCCESS)
		return EXIT_WORK;
	client_say(&client, "end", "%llu words are wrong", "\"wrong\": %llu", (unsigned long long)look(&client, &memory));
	return 0;
}
