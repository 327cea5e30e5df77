/* faulter MODE: causes one fault on the device, on purpose, and reports the result.
 *
 *   faulter MODE [--gate] [--after S] [--linger S] [--kernel-ms MS] [--json]      faulter --list
 *
 * --gate: faults when its standard input ends, so that others can get ready first.
 * Exit status: 0 if no call failed, because the fault was contained; else EXIT_WORK.  Each line of --list is a mode and
 * its class: mmu, sm, host (the effect of the process's death), none (harms no client). */
#include "client.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct attempt {
	const struct mode *mode;
	uint64_t kernel_ms;
	uint64_t began_ns; /* set by say_now() */
};

struct mode {
	const char *name; /* also of its kernel, if it has one */
	const char *class;
	CUresult (*run)(struct client *client, struct attempt *attempt);
	CUdeviceptr (*memory)(struct client *client); /* NULL: some that is good */
};

enum { REGION = 64 << 20, GRANULE = 2 << 20, DIE_AFTER_US = 20000 };

static CUdeviceptr freed_memory(struct client *client)
{
	CUdeviceptr p;

	CLIENT_CHECK(client, cuMemAlloc(&p, REGION), EXIT_WORK);
	CLIENT_CHECK(client, cuMemFree(p), EXIT_WORK);
	return p;
}

static CUdeviceptr mapped(struct client *client, CUmemAccess_flags access)
{
	CUmemAllocationProp prop;
	CUmemAccessDesc may;
	CUmemGenericAllocationHandle memory;
	CUdeviceptr p;

	memset(&prop, 0, sizeof(prop));
	prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	may.location = prop.location;
	may.flags = access;
	CLIENT_CHECK(client, cuMemCreate(&memory, GRANULE, &prop, 0), EXIT_WORK);
	CLIENT_CHECK(client, cuMemAddressReserve(&p, GRANULE, 0, 0, 0), EXIT_WORK);
	CLIENT_CHECK(client, cuMemMap(p, GRANULE, 0, memory, 0), EXIT_WORK);
	CLIENT_CHECK(client, cuMemSetAccess(p, GRANULE, &may, 1), EXIT_WORK);
	return p;
}

static CUdeviceptr read_only_memory(struct client *client)
{
	return mapped(client, CU_MEM_ACCESS_FLAGS_PROT_READ);
}

static CUdeviceptr managed_memory(struct client *client)
{
	CUdeviceptr p;

	CLIENT_CHECK(client, cuMemAllocManaged(&p, 1 << 20, CU_MEM_ATTACH_GLOBAL), EXIT_WORK);
	CLIENT_CHECK(client, cuMemsetD8(p, 0xff, 1 << 20), EXIT_WORK); /* it is on the device now */
	return p;
}

static CUdeviceptr freed_managed_memory(struct client *client)
{
	CUdeviceptr p = managed_memory(client);

	CLIENT_CHECK(client, cuMemFree(p), EXIT_WORK);
	return p;
}

static CUdeviceptr good_memory(struct client *client)
{
	CUdeviceptr p;

	CLIENT_CHECK(client, cuMemAlloc(&p, 1 << 20), EXIT_WORK);
	CLIENT_CHECK(client, cuMemsetD8(p, 0xff, 1 << 20), EXIT_WORK);
	return p;
}

static void say_now(struct client *client, struct attempt *attempt)
{
	client_say(client, "fault", "%s now", "\"mode\": \"%s\"", attempt->mode->name);
	attempt->began_ns = client_now_ns();
}

static CUresult launch(struct client *client, struct attempt *attempt, CUfunction kernel)
{
	CUdeviceptr p = attempt->mode->memory ? attempt->mode->memory(client) : good_memory(client);
	void *parameters[] = { &p };
	CUresult rc;

	say_now(client, attempt);
	rc = client_launch(kernel, 1, 1, parameters);
	return rc == CUDA_SUCCESS ? cuCtxSynchronize() : rc;
}

static CUresult run_kernel(struct client *client, struct attempt *attempt)
{
	return launch(client, attempt, client_kernel(client, attempt->mode->name));
}

/* While a valid kernel of this process runs, which keeps its channels busy. */
static CUresult run_busy(struct client *client, struct attempt *attempt)
{
	CUdeviceptr p = good_memory(client);
	uint64_t cycles = attempt->kernel_ms * 1755000ull;
	void *parameters[] = { &p, &cycles };
	CUstream stream[2];

	for (int i = 0; i < 2; i++)
		CLIENT_CHECK(client, cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING), EXIT_WORK);
	CLIENT_CHECK(client, cuLaunchKernel(client_kernel(client, "spin"), 1, 1, 1, 1, 1, 1, 0, stream[0], parameters, NULL),
		     EXIT_WORK);
	usleep(DIE_AFTER_US); /* it runs */
	say_now(client, attempt);
	CLIENT_CHECK(client, cuLaunchKernel(client_kernel(client, "oob_write"), 1, 1, 1, 1, 1, 1, 0, stream[1], parameters, NULL),
		     EXIT_WORK);
	return cuCtxSynchronize();
}

static CUresult run_broken(struct client *client, struct attempt *attempt)
{
	return launch(client, attempt, broken_code_kernel(client));
}

static void spin_for(struct client *client, CUdeviceptr p, uint64_t ms)
{
	uint64_t cycles = ms * 1755000ull;
	void *parameters[] = { &p, &cycles };

	CLIENT_CHECK(client, client_launch(client_kernel(client, "spin"), 1, 1, parameters), EXIT_WORK);
}

/* The copy waits behind a kernel; when its turn comes, its target is gone: the copy engine faults. */
static CUresult run_copy(struct client *client, struct attempt *attempt)
{
	CUdeviceptr to = mapped(client, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), from;

	CLIENT_CHECK(client, cuMemAlloc(&from, GRANULE), EXIT_WORK);
	say_now(client, attempt);
	spin_for(client, from, 200);
	CLIENT_CHECK(client, cuMemcpyDtoDAsync(to, from, GRANULE, NULL), EXIT_WORK);
	CLIENT_CHECK(client, cuMemUnmap(to, GRANULE), EXIT_WORK);
	return cuCtxSynchronize();
}

/* Device memory, never managed: that would be taken from the host. */
static CUresult run_out_of_memory(struct client *client, struct attempt *attempt)
{
	size_t total;
	CUdeviceptr p;

	CLIENT_CHECK(client, cuDeviceTotalMem(&total, client->device), EXIT_WORK);
	say_now(client, attempt);
	return cuMemAlloc(&p, total + (1ull << 30));
}

/* Does not come back: the process ends while its kernel runs. */
static CUresult die_in_flight(void)
{
	usleep(DIE_AFTER_US);
	raise(SIGKILL);
	return CUDA_ERROR_UNKNOWN;
}

static CUresult run_killed(struct client *client, struct attempt *attempt)
{
	CUdeviceptr p = good_memory(client);

	say_now(client, attempt);
	spin_for(client, p, attempt->kernel_ms);
	return die_in_flight();
}

static CUresult run_killed_hang(struct client *client, struct attempt *attempt)
{
	CUdeviceptr p = good_memory(client);
	void *parameters[] = { &p };

	say_now(client, attempt);
	CLIENT_CHECK(client, client_launch(client_kernel(client, "hang"), 1, 1, parameters), EXIT_WORK);
	return die_in_flight();
}

static const struct mode modes[] = {
	{ "oob_write", "mmu", run_kernel, NULL },
	{ "oob_read", "mmu", run_kernel, NULL },
	{ "oob_atomic", "mmu", run_kernel, NULL },
	{ "null_write", "mmu", run_kernel, NULL },
	{ "near_null_write", "mmu", run_kernel, NULL },
	{ "array_null_write", "mmu", run_kernel, NULL },
	{ "array_null_read", "mmu", run_kernel, NULL },
	{ "use_after_free", "mmu", run_kernel, freed_memory },
	{ "ro_write", "mmu", run_kernel, read_only_memory },
	{ "managed_freed", "mmu", run_kernel, freed_managed_memory },
	{ "managed_oob", "mmu", run_kernel, managed_memory },
	{ "copy", "mmu", run_copy, NULL },
	{ "busy_write", "mmu", run_busy, NULL },
	{ "misaligned", "sm", run_kernel, NULL },
	{ "trap", "sm", run_kernel, NULL },
	{ "assert_fail", "sm", run_kernel, NULL },
	{ "illegal_instruction", "sm", run_broken, NULL },
	{ "stack_overflow", "sm", run_kernel, NULL },
	{ "killed", "host", run_killed, NULL },
	{ "killed_hang", "host", run_killed_hang, NULL },
	{ "hang", "none", run_kernel, NULL },
	{ "out_of_memory", "none", run_out_of_memory, NULL },
};

/* The exit status.  The next call shows whether the context lives: out of memory is no reason for it to die. */
static int do_it(struct client *client, struct attempt *attempt)
{
	CUresult rc = attempt->mode->run(client, attempt), next;
	CUdeviceptr p;

	client_say(client, "result", "%s: %d after %.2f ms", "\"mode\": \"%s\", \"code\": %d, \"ms\": %.3f", attempt->mode->name,
		   (int)rc, client_ms_since(attempt->began_ns));
	if (rc != CUDA_SUCCESS && rc != CUDA_ERROR_OUT_OF_MEMORY)
		return EXIT_WORK;
	next = cuMemAlloc(&p, 4096);
	client_say(client, "next", "next call: %d", "\"code\": %d", (int)next);
	return rc == CUDA_SUCCESS && next == CUDA_SUCCESS ? 0 : EXIT_WORK;
}

static const struct mode *find(const char *name)
{
	for (size_t i = 0; i < sizeof(modes) / sizeof(*modes); i++)
		if (strcmp(name, modes[i].name) == 0)
			return &modes[i];
	return NULL;
}

static int list(void)
{
	for (size_t i = 0; i < sizeof(modes) / sizeof(*modes); i++)
		printf("%s %s\n", modes[i].name, modes[i].class);
	return 0;
}

/* For ever: the process at the other end decides. */
static void wait_for_end_of_stdin(void)
{
	char ignored[64];

	while (read(STDIN_FILENO, ignored, sizeof(ignored)) > 0)
		;
}

int main(int argc, char **argv)
{
	struct client client;
	struct attempt attempt = { 0 };
	double after, linger;
	bool gate;
	int status;

	client_options(&client, "faulter", &argc, argv);
	gate = client_flag(&argc, argv, "--gate");
	after = atof(client_option(&argc, argv, "--after", "0"));
	linger = atof(client_option(&argc, argv, "--linger", "0"));
	attempt.kernel_ms = strtoull(client_option(&argc, argv, "--kernel-ms", "1000"), NULL, 10);
	if (argc == 2 && strcmp(argv[1], "--list") == 0)
		return list();
	attempt.mode = argc == 2 ? find(argv[1]) : NULL;
	if (!attempt.mode)
		client_usage("faulter MODE [--gate] [--after S] [--linger S] [--kernel-ms MS] [--json]; faulter --list");
	client_start(&client);
	client_say(&client, "ready", "ready", "\"sms\": %d", client_sms(&client));
	if (gate)
		wait_for_end_of_stdin();
	usleep((useconds_t)(after * 1e6));
	status = do_it(&client, &attempt);
	usleep((useconds_t)(linger * 1e6));
	return status;
}
