/* hold: has a context and some memory, and does nothing until it is ended or its time is over. */
#include "client.h"

#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	struct client client;
	size_t bytes;
	double seconds;
	bool init_only;
	CUdeviceptr p;

	client_options(&client, "hold", &argc, argv);
	seconds = atof(client_option(&argc, argv, "--seconds", "3600"));
	bytes = strtoull(client_option(&argc, argv, "--mem", "0"), NULL, 10) << 20;
	init_only = client_flag(&argc, argv, "--init-only");
	if (argc > 1)
		client_usage("hold [--seconds S] [--mem MiB] [--init-only] [--json]");
	if (init_only)
		CLIENT_CHECK(&client, cuInit(0), EXIT_START);
	else
		client_start(&client);
	if (bytes && !init_only)
		CLIENT_CHECK(&client, cuMemAlloc(&p, bytes), EXIT_WORK);
	client_say(&client, "ready", "holding %zu MiB", "\"mib\": %zu", bytes >> 20);
	usleep((useconds_t)(seconds * 1e6));
	return 0;
}
