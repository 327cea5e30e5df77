/* faulter MODE: does one wrong thing on the device, on purpose, and says what came of it.
 *
 *   faulter MODE [--after S] [--linger S] [--json]      faulter --list
 */
#include "client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { GOOD, FREED, READ_ONLY, COPY, BROKEN };

static const struct mode {
	const char *name; /* of the mode and of its kernel */
	int needs;
} modes[] = {
	{ "oob_write", GOOD }, { "oob_read", GOOD }, { "oob_atomic", GOOD }, { "null_write", GOOD },
	{ "near_null_write", GOOD }, { "use_after_free", FREED }, { "ro_write", READ_ONLY }, { "misaligned", GOOD },
	{ "trap", GOOD }, { "assert_fail", GOOD }, { "illegal_instruction", BROKEN }, { "stack_overflow", GOOD },
	{ "hang", GOOD }, { "copy", COPY },
};

enum { REGION = 64 << 20, GRANULE = 2 << 20 };

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

static CUdeviceptr address_for(struct client *client, const struct mode *mode)
{
	CUdeviceptr p;

	if (mode->needs == FREED)
		return freed_memory(client);
	if (mode->needs == READ_ONLY)
		return mapped(client, CU_MEM_ACCESS_FLAGS_PROT_READ);
	if (mode->needs == COPY)
		return mapped(client, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	CLIENT_CHECK(client, cuMemAlloc(&p, 1 << 20), EXIT_WORK);
	CLIENT_CHECK(client, cuMemsetD8(p, 0xff, 1 << 20), EXIT_WORK);
	return p;
}

/* The copy waits behind a kernel; when its turn comes, its target is gone: the copy engine faults. */
static CUresult copy_to_nowhere(struct client *client, CUdeviceptr to)
{
	uint64_t cycles = 200 * 1755000ull;
	CUdeviceptr from;
	void *parameters[] = { &from, &cycles };

	CLIENT_CHECK(client, cuMemAlloc(&from, GRANULE), EXIT_WORK);
	CLIENT_CHECK(client, client_launch(client_kernel(client, "spin"), 1, 1, parameters), EXIT_WORK);
	CLIENT_CHECK(client, cuMemcpyDtoDAsync(to, from, GRANULE, NULL), EXIT_WORK);
	CLIENT_CHECK(client, cuMemUnmap(to, GRANULE), EXIT_WORK);
	return CUDA_SUCCESS;
}

static void do_it(struct client *client, const struct mode *mode)
{
	CUfunction kernel = mode->needs == COPY ? NULL : mode->needs == BROKEN ? broken_code_kernel(client) :
			    client_kernel(client, mode->name);
	CUdeviceptr p = address_for(client, mode);
	void *parameters[] = { &p };
	uint64_t before;
	CUresult rc;

	client_say(client, "fault", "%s now", "\"mode\": \"%s\"", mode->name);
	before = client_now_ns();
	rc = mode->needs == COPY ? copy_to_nowhere(client, p) : client_launch(kernel, 1, 1, parameters);
	if (rc == CUDA_SUCCESS)
		rc = cuCtxSynchronize();
	client_say(client, "result", "%s: %d after %.2f ms", "\"mode\": \"%s\", \"code\": %d, \"ms\": %.3f", mode->name, (int)rc,
		   client_ms_since(before));
	if (rc == CUDA_SUCCESS) {
		rc = cuMemAlloc(&p, 4096);
		client_say(client, "next", "next call: %d", "\"code\": %d", (int)rc);
	}
}

int main(int argc, char **argv)
{
	struct client client;
	const struct mode *mode = NULL;
	double after, linger;

	client_options(&client, "faulter", &argc, argv);
	after = atof(client_option(&argc, argv, "--after", "0"));
	linger = atof(client_option(&argc, argv, "--linger", "0"));
	for (size_t i = 0; i < sizeof(modes) / sizeof(*modes); i++) {
		if (argc > 1 && strcmp(argv[1], "--list") == 0)
			printf("%s\n", modes[i].name);
		else if (argc == 2 && strcmp(argv[1], modes[i].name) == 0)
			mode = &modes[i];
	}
	if (argc > 1 && strcmp(argv[1], "--list") == 0)
		return 0;
	if (!mode)
		client_usage("faulter MODE [--after S] [--linger S] [--json]; faulter --list");
	client_start(&client);
	client_say(&client, "ready", "ready", "\"sms\": %d", client_sms(&client));
	usleep((useconds_t)(after * 1e6));
	do_it(&client, mode);
	usleep((useconds_t)(linger * 1e6));
	return EXIT_WORK;
}
