/* contexts N: makes N contexts in one process, keeps them a while, and ends them. */
#include "client.h"

#include <stdlib.h>
#include <unistd.h>

enum { MOST = 256 };

int main(int argc, char **argv)
{
	struct client client;
	CUcontext contexts[MOST];
	double linger;
	int wanted;

	client_options(&client, "contexts", &argc, argv);
	linger = atof(client_option(&argc, argv, "--linger", "0"));
	wanted = argc == 2 ? atoi(argv[1]) : 0;
	if (wanted < 1 || wanted > MOST)
		client_usage("contexts N [--linger S] [--json]");
	CLIENT_CHECK(&client, cuInit(0), EXIT_START);
	CLIENT_CHECK(&client, cuDeviceGet(&client.device, 0), EXIT_START);
	for (int i = 0; i < wanted; i++) {
		uint64_t before = client_now_ns();

		CLIENT_CHECK(&client, cuCtxCreate(&contexts[i], NULL, 0, client.device), EXIT_START);
		client_say(&client, "context", "context %d after %.1f ms, %d SMs", "\"number\": %d, \"ms\": %.3f, \"sms\": %d", i + 1,
			   client_ms_since(before), client_sms(&client));
	}
	usleep((useconds_t)(linger * 1e6));
	while (wanted--)
		CLIENT_CHECK(&client, cuCtxDestroy(contexts[wanted]), EXIT_WORK);
	return 0;
}
