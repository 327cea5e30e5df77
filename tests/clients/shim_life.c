/* shim_life WORD: lives that a shim must survive.  Linked to libcuda.  Prints PASS last, or the error.
 *
 *   fork_before          fork before cuInit: parent and child both use CUDA
 *   fork_after           the child of a process that uses CUDA: every call as without the shim, and it ends
 *   fork_refused         the child of a process that cuInit refused: it is refused as well
 *   fork_exec            ... and a child that starts another program, which uses CUDA
 *   threads              eight threads allocate, copy, free, and fork, at once
 *   callback             calls from a host function of a stream
 *   exit                 CUDA calls in atexit and in a destructor
 *   vm                   the program's own cuMemCreate and cuMemMap; a wild access next to them is as without the shim
 *   ipc                  cuIpcGetMemHandle of memory: prints the result
 *   reset                memory goes with its context: cuDevicePrimaryCtxReset, then as much again
 *   pitch                cuMemAllocPitch, if the library has it
 *   others               memory of pools, managed memory, a graph's memory: all from the driver, as without the shim
 *   churn SEED           allocates and frees at random, with wild writes next to live memory and into freed memory: each is
 *                        absorbed, and no live memory changes.  Needs MPSD_SHIELD, and all of it placed
 *   placed               the driver's attributes of memory of cuMemAlloc: its range, its kind, free memory */
#include "client.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ull << 20)
#define CHECK(call, wanted)                                                       \
	do {                                                                      \
		int rc_ = (int)(call);                                            \
		if (rc_ != (wanted)) {                                            \
			printf("%s: %d, not %d\n", #call, rc_, (int)(wanted));    \
			fflush(stdout);                                           \
			_exit(5);                                                 \
		}                                                                 \
	} while (0)

static CUcontext start(void)
{
	CUcontext context;

	CHECK(cuInit(0), 0);
	CHECK(cuDevicePrimaryCtxRetain(&context, 0), 0);
	CHECK(cuCtxSetCurrent(context), 0);
	return context;
}

static void use(size_t bytes)
{
	CUdeviceptr memory;
	uint64_t word = 0x1234567890abcdef, back = 0;

	CHECK(cuMemAlloc(&memory, bytes), 0);
	CHECK(cuMemsetD8(memory, 0, bytes), 0);
	CHECK(cuMemcpyHtoD(memory + bytes - 8, &word, 8), 0);
	CHECK(cuMemcpyDtoH(&back, memory + bytes - 8, 8), 0);
	CHECK(back == word, 1);
	CHECK(cuMemFree(memory), 0);
}

static int child_of(pid_t child)
{
	int status;

	CHECK(waitpid(child, &status, 0) == child, 1);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static void fork_before(void)
{
	pid_t child = fork();

	start();
	use(4 * MIB);
	if (child == 0)
		exit(0);
	CHECK(child_of(child), 0);
}

static void fork_after(void)
{
	CUdeviceptr memory, other;
	pid_t child;

	start();
	CHECK(cuMemAlloc(&memory, 4 * MIB), 0);
	child = fork();
	if (child == 0) {
		CHECK(cuInit(0), 3);
		CHECK(cuMemAlloc(&other, 4 * MIB), 3);
		CHECK(cuCtxSynchronize(), 3);
		exit(0); /* destructors too */
	}
	CHECK(child_of(child), 0);
	use(4 * MIB);
	CHECK(cuMemFree(memory), 0);
}

static void fork_refused(void)
{
	pid_t child;

	CHECK(cuInit(0), 805);
	child = fork();
	if (child == 0) {
		CHECK(cuInit(0), 805);
		exit(0);
	}
	CHECK(child_of(child), 0);
}

static void fork_exec(char **words)
{
	pid_t child;

	start();
	child = fork();
	if (child == 0) {
		execl(words[0], words[0], "callback", (char *)NULL);
		_exit(9);
	}
	CHECK(child_of(child), 0);
}

static void *work(void *context)
{
	pid_t child;

	CHECK(cuCtxSetCurrent(context), 0);
	for (int i = 0; i < 10; i++) {
		use((2 + (size_t)i % 3) * MIB);
		child = i % 5 == 0 ? fork() : -1;
		if (child == 0)
			_exit(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") ? 0 : 7);
		if (child > 0)
			CHECK(child_of(child), 0);
	}
	return NULL;
}

static void threads(void)
{
	CUcontext context = start();
	pthread_t all[8];

	for (int i = 0; i < 8; i++)
		CHECK(pthread_create(&all[i], NULL, work, context), 0);
	for (int i = 0; i < 8; i++)
		CHECK(pthread_join(all[i], NULL), 0);
}

static void called(void *count)
{
	if (dlsym(RTLD_DEFAULT, "cuMemAlloc_v2")) /* CUDA is not to be called from there; anything else is */
		++*(int *)count;
}

static void callback(void)
{
	int count = 0;

	start();
	CHECK(cuLaunchHostFunc(NULL, called, &count), 0);
	CHECK(cuCtxSynchronize(), 0);
	CHECK(count, 1);
}

static CUdeviceptr left;
static void at_exit(void) { CHECK(cuMemFree(left), 0); }
static void __attribute__((destructor)) last(void)
{
	if (left)
		cuCtxSynchronize(); /* any result is good */
}

static void vm(void)
{
	CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 } };
	CUmemAccessDesc access = { prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUmemGenericAllocationHandle handle;
	CUdeviceptr window;

	start();
	CHECK(cuMemAddressReserve(&window, 64 * MIB, 0, 0, 0), 0);
	for (int i = 0; i < 8; i++) { /* as an allocator with expandable segments */
		CHECK(cuMemCreate(&handle, 4 * MIB, &prop, 0), 0);
		CHECK(cuMemMap(window + (size_t)i * 8 * MIB, 4 * MIB, 0, handle, 0), 0);
		CHECK(cuMemSetAccess(window + (size_t)i * 8 * MIB, 4 * MIB, &access, 1), 0);
		CHECK(cuMemRelease(handle), 0);
		CHECK(cuMemsetD8(window + (size_t)i * 8 * MIB, 1, 4 * MIB), 0);
	}
	CHECK(cuMemFree(window), 1);
	for (int i = 0; i < 8; i++)
		CHECK(cuMemUnmap(window + (size_t)i * 8 * MIB, 4 * MIB), 0);
	CHECK(cuMemAddressFree(window, 64 * MIB), 0);
	use(4 * MIB);
}

static void ipc(void)
{
	int (*get)(void *, CUdeviceptr) = NULL;
	CUdeviceptr memory;
	char handle[64];

	start();
	CHECK(cuMemAlloc(&memory, 4 * MIB), 0);
	*(void **)&get = dlsym(RTLD_DEFAULT, "cuIpcGetMemHandle");
	printf("ipc %d\n", get ? get(handle, memory) : -1);
}

static void reset(void)
{
	CUdeviceptr memory;
	size_t before, after, total;

	start();
	CHECK(cuMemGetInfo(&before, &total), 0);
	for (int i = 0; i < 3; i++) {
		CHECK(cuMemAlloc(&memory, total / 2), 0);
		CHECK(cuDevicePrimaryCtxReset(0), 0);
		start();
		CHECK(cuMemGetInfo(&after, &total), 0);
		CHECK(after == before, 1);
	}
}

static void pitch(void)
{
	int (*alloc)(CUdeviceptr *, size_t *, size_t, size_t, unsigned) = NULL;
	CUdeviceptr memory, base;
	size_t row = 0, bytes;

	start();
	*(void **)&alloc = dlsym(RTLD_DEFAULT, "cuMemAllocPitch_v2");
	if (!alloc || alloc(&memory, &row, 1000, 3000, 4) == 3)
		return;
	CHECK(row >= 1000 && row % 256 == 0, 1);
	CHECK(cuMemGetAddressRange(&base, &bytes, memory + 5), 0);
	CHECK(base == memory && bytes >= row * 3000, 1);
	CHECK(cuMemFree(memory), 0);
}

static void others(void)
{
	CUdeviceptr memory, managed;
	CUstream stream;
	CUgraphExec run;
	CUgraph graph;
	uint32_t word = 0;

	start();
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), 0);
	CHECK(cuMemAllocAsync(&memory, 4 * MIB, stream), 0);
	CHECK(cuMemAllocManaged(&managed, 4 * MIB, CU_MEM_ATTACH_GLOBAL), 0);
	CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), 0);
	CHECK(cuMemsetD32Async(memory, 7, MIB, stream), 0);
	CHECK(cuStreamEndCapture(stream, &graph), 0);
	CHECK(cuGraphInstantiate(&run, graph, 0), 0);
	CHECK(cuGraphLaunch(run, stream), 0);
	CHECK(cuStreamSynchronize(stream), 0);
	CHECK(cuMemcpyDtoH(&word, memory + 4 * MIB - 4, 4), 0);
	CHECK(word, 7);
	CHECK(cuGraphExecDestroy(run), 0);
	CHECK(cuGraphDestroy(graph), 0);
	CHECK(cuMemFreeAsync(memory, stream), 0);
	CHECK(cuMemFree(managed), 0);
	CHECK(cuStreamSynchronize(stream), 0);
}

static void placed(void)
{
	size_t before, after, total, bytes;
	CUdeviceptr memory, base = 0;
	unsigned kind = 0;

	start();
	CHECK(cuMemGetInfo(&before, &total), 0);
	CHECK(cuMemAlloc(&memory, 6 * MIB), 0);
	CHECK(cuMemGetInfo(&after, &total), 0);
	CHECK(before - after == 6 * MIB, 1);
	CHECK(cuMemGetAddressRange(&base, &bytes, memory + 5 * MIB), 0);
	CHECK(base == memory && bytes == 6 * MIB, 1);
	CHECK(cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory + 1), 0);
	CHECK(kind, 2);
	CHECK(cuMemFree(memory + 4096), 1);
	CHECK(cuMemFree(memory), 0);
	CHECK(cuMemGetInfo(&after, &total), 0);
	CHECK(before == after, 1);
}

enum { CHURN_PLACES = 12, CHURN_STEPS = 120 };

struct piece {
	CUdeviceptr at;
	size_t bytes;
	uint32_t mark;
};

static void write_wildly(struct client *client, CUdeviceptr at)
{
	void *parameters[] = { &at };

	CHECK(client_launch(client_kernel(client, "use_after_free"), 1, 1, parameters), 0); /* it writes to its parameter */
	CHECK(cuCtxSynchronize(), 0);
}

static void look_at(const struct piece *piece)
{
	uint32_t first, last;

	CHECK(cuMemcpyDtoH(&first, piece->at, 4), 0);
	CHECK(cuMemcpyDtoH(&last, piece->at + piece->bytes - 4, 4), 0);
	CHECK(first == piece->mark && last == piece->mark, 1);
}

static void make(struct client *client, struct piece *piece, uint32_t mark)
{
	piece->bytes = (1 + (size_t)rand() % 5) * 2 * MIB;
	piece->mark = mark;
	CHECK(cuMemAlloc(&piece->at, piece->bytes), 0);
	CHECK(cuMemsetD32(piece->at, mark, piece->bytes / 4), 0);
	write_wildly(client, piece->at + piece->bytes + 64); /* behind it: a guard, since all sizes are of 2 MiB */
	write_wildly(client, piece->at - 64);
}

static void churn(char **words)
{
	struct piece pieces[CHURN_PLACES] = { 0 };
	struct client client = { .name = "shim_life" };

	srand((unsigned)atoi(words[2]));
	client_start(&client);
	for (uint32_t step = 1; step <= CHURN_STEPS; step++) {
		struct piece *piece = &pieces[rand() % CHURN_PLACES];
		CUdeviceptr freed = piece->at;

		if (!freed) {
			make(&client, piece, step);
			continue;
		}
		look_at(piece);
		CHECK(cuMemFree(freed), 0);
		piece->at = 0;
		write_wildly(&client, freed + 64 + (size_t)rand() % (piece->bytes - 128) / 8 * 8);
	}
	for (int i = 0; i < CHURN_PLACES; i++)
		if (pieces[i].at)
			look_at(&pieces[i]);
}

int main(int count, char **words)
{
	static const struct {
		const char *word;
		void (*run)(void);
	} lives[] = { { "fork_before", fork_before }, { "fork_after", fork_after }, { "threads", threads }, { "callback", callback },
		      { "fork_refused", fork_refused },
		      { "vm", vm }, { "ipc", ipc }, { "reset", reset }, { "pitch", pitch },
		      { "others", others }, { "placed", placed } };
	const char *word = count > 1 ? words[1] : "";

	for (unsigned i = 0; i < sizeof(lives) / sizeof(*lives); i++)
		if (!strcmp(lives[i].word, word))
			lives[i].run();
	if (!strcmp(word, "fork_exec"))
		fork_exec(words);
	if (!strcmp(word, "churn") && count > 2)
		churn(words);
	if (!strcmp(word, "exit")) {
		start();
		CHECK(cuMemAlloc(&left, 4 * MIB), 0);
		atexit(at_exit);
	}
	puts("PASS");
	return 0;
}
