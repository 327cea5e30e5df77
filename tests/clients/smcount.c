/* smcount: how many SMs a kernel of ours really runs on, and what the attribute says. */
#include "client.h"

#include <string.h>

enum { SLOTS = 1024, BLOCKS = 4000, THREADS = 1024 };

int main(int argc, char **argv)
{
	struct client client;
	uint32_t seen[SLOTS];
	CUdeviceptr m;
	void *parameters[] = { &m };
	int distinct = 0;

	client_options(&client, "smcount", &argc, argv);
	if (argc > 1)
		client_usage("smcount [--json]");
	client_start(&client);
	CLIENT_CHECK(&client, cuMemAlloc(&m, sizeof(seen)), EXIT_WORK);
	CLIENT_CHECK(&client, cuMemsetD8(m, 0, sizeof(seen)), EXIT_WORK);
	CLIENT_CHECK(&client, client_launch(client_kernel(&client, "smids"), BLOCKS, THREADS, parameters), EXIT_WORK);
	CLIENT_CHECK(&client, cuCtxSynchronize(), EXIT_WORK);
	CLIENT_CHECK(&client, cuMemcpyDtoH(seen, m, sizeof(seen)), EXIT_WORK);
	for (int i = 0; i < SLOTS; i++)
		distinct += seen[i] != 0;
	client_say(&client, "sms", "%d SMs seen, attribute %d", "\"seen\": %d, \"attribute\": %d", distinct, client_sms(&client));
	return 0;
}
