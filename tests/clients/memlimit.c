/* memlimit MiB: allocates that much in one piece, and reports the free memory by the driver.
 *
 * With --vmm the memory comes from cuMemCreate (whole granules of 2 MiB). */
#include "client.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static CUresult create(size_t bytes)
{
	CUmemGenericAllocationHandle handle;
	CUmemAllocationProp prop;

	memset(&prop, 0, sizeof(prop));
	prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	return cuMemCreate(&handle, bytes, &prop, 0);
}

int main(int argc, char **argv)
{
	struct client client;
	size_t bytes, free_bytes = 0, total = 0;
	double linger;
	bool vmm;
	CUdeviceptr p;

	client_options(&client, "memlimit", &argc, argv);
	linger = atof(client_option(&argc, argv, "--linger", "0"));
	vmm = client_flag(&argc, argv, "--vmm");
	if (argc != 2)
		client_usage("memlimit MiB [--vmm] [--linger S] [--json]");
	bytes = strtoull(argv[1], NULL, 10) << 20;
	client_start(&client);
	CLIENT_CHECK(&client, cuMemGetInfo(&free_bytes, &total), EXIT_WORK);
	client_say(&client, "info", "%zu MiB free of %zu", "\"free_mib\": %zu, \"total_mib\": %zu", free_bytes >> 20, total >> 20);
	if (vmm)
		CLIENT_CHECK(&client, create(bytes), EXIT_WORK);
	else
		CLIENT_CHECK(&client, cuMemAlloc(&p, bytes), EXIT_WORK);
	CLIENT_CHECK(&client, cuMemGetInfo(&free_bytes, &total), EXIT_WORK);
	client_say(&client, "allocated", "%zu MiB allocated, %zu MiB free of %zu",
		   "\"mib\": %zu, \"free_mib\": %zu, \"total_mib\": %zu", bytes >> 20, free_bytes >> 20, total >> 20);
	usleep((useconds_t)(linger * 1e6));
	return 0;
}
