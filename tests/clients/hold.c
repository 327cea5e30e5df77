/* hold: has a context and some memory, and does nothing until it is ended or its time is over.
 * With --init-only it has none until SIGUSR1. */
#include "client.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

/* Waits for SIGUSR1, or until the time is over. */
static void wait_for_signal(const sigset_t *set, double seconds)
{
	struct timespec patience = { .tv_sec = (time_t)seconds };

	if (sigtimedwait(set, NULL, &patience) != SIGUSR1)
		exit(0);
}

int main(int argc, char **argv)
{
	struct client client;
	size_t bytes;
	double seconds;
	bool init_only;
	CUdeviceptr p;
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigprocmask(SIG_BLOCK, &set, NULL);
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
	if (init_only) {
		wait_for_signal(&set, seconds);
		client_start(&client);
		client_say(&client, "context", "has a context", "\"mib\": 0");
	}
	usleep((useconds_t)(seconds * 1e6));
	return 0;
}
