/* quota: this process's limits: its SMs, the SMs on which its kernel ran (with co-runners they may be fewer), and
 * the memory that it can have.
 *
 * It allocates in steps until it is refused, and reports the sum.  --most MiB: it stops there, so that a client without a limit does
 * not take the memory that others need. */
#include "client.h"

#include <stdlib.h>
#include <unistd.h>

enum { STEP_MIB = 64 };

static int fill(int most_mib)
{
	CUdeviceptr p;
	int mib = 0;

	while (mib < most_mib && cuMemAlloc(&p, (size_t)STEP_MIB << 20) == CUDA_SUCCESS)
		mib += STEP_MIB;
	return mib;
}

int main(int argc, char **argv)
{
	struct client client;
	double linger;
	int most_mib, seen, mib;

	client_options(&client, "quota", &argc, argv);
	linger = atof(client_option(&argc, argv, "--linger", "0"));
	most_mib = atoi(client_option(&argc, argv, "--most", "16384"));
	if (argc != 1)
		client_usage("quota [--most MiB] [--linger S] [--json]");
	client_start(&client);
	seen = client_seen_sms(&client);
	mib = fill(most_mib);
	client_say(&client, "quota", "%d SMs, %d of them seen, %d MiB", "\"sms\": %d, \"seen\": %d, \"mib\": %d", client_sms(&client),
		   seen, mib);
	usleep((useconds_t)(linger * 1e6));
	return 0;
}
