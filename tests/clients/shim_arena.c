/* shim_arena [--write VALUE] [--free N] [--wild] [--rounds N] [--end exit|kill|stay] [--json] MIB...: allocates so many MiB each, in that order,
 * and reports for each the address and the first and last word; then it writes VALUE + its number into all of it.  --free: then
 * frees that one.  --wild: a kernel writes 64 bytes behind the last.  --rounds: before all that, allocates and frees the same sizes so
 * often.  A plain program: it does not know that the memory outlives it. */
#include "client.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 64 };

static void say_what_was(struct client *client, int number, CUdeviceptr at, size_t bytes)
{
	uint32_t first, last;

	CLIENT_CHECK(client, cuMemcpyDtoH(&first, at, sizeof(first)), EXIT_WORK);
	CLIENT_CHECK(client, cuMemcpyDtoH(&last, at + bytes - sizeof(last), sizeof(last)), EXIT_WORK);
	client_say(client, "memory", "%d: 0x%llx had %u ... %u", "\"number\": %d, \"address\": %llu, \"first\": %u, \"last\": %u", number,
		   (unsigned long long)at, first, last);
}

static void write_at(struct client *client, CUdeviceptr at)
{
	void *parameters[] = { &at };

	client_say(client, "wild", "0x%llx", "\"address\": %llu", (unsigned long long)at);
	CLIENT_CHECK(client, client_launch(client_kernel(client, "use_after_free"), 1, 1, parameters), EXIT_WORK); /* its parameter */
}

static void turn(struct client *client, char **sizes, int count)
{
	CUdeviceptr memory[MOST];

	for (int i = 0; i < count; i++)
		CLIENT_CHECK(client, cuMemAlloc(&memory[i], (size_t)atol(sizes[i]) << 20), EXIT_WORK);
	CLIENT_CHECK(client, cuCtxSynchronize(), EXIT_WORK);
	for (int i = 0; i < count; i++)
		CLIENT_CHECK(client, cuMemFree(memory[i]), EXIT_WORK);
}

int main(int argc, char **argv)
{
	const char *write, *freed, *end;
	bool is_wild;
	int rounds;
	CUdeviceptr memory[MOST];
	struct client client;
	int count;

	client_options(&client, "shim_arena", &argc, argv);
	write = client_option(&argc, argv, "--write", "");
	freed = client_option(&argc, argv, "--free", "");
	end = client_option(&argc, argv, "--end", "exit");
	rounds = atoi(client_option(&argc, argv, "--rounds", "0"));
	is_wild = client_flag(&argc, argv, "--wild");
	count = argc - 1;
	if (count < 1 || count > MOST)
		client_usage("shim_arena [--write VALUE] [--free N] [--wild] [--rounds N] [--end exit|kill|stay] [--json] MIB...");
	client_start(&client);
	client_say(&client, "ready", "ready", "");
	for (int i = 0; i < rounds; i++)
		turn(&client, argv + 1, count);
	for (int i = 0; i < count; i++) {
		size_t bytes = (size_t)atol(argv[i + 1]) << 20;

		CLIENT_CHECK(&client, cuMemAlloc(&memory[i], bytes), EXIT_WORK);
		say_what_was(&client, i, memory[i], bytes);
		if (*write)
			CLIENT_CHECK(&client, cuMemsetD32(memory[i], (unsigned)atoi(write) + (unsigned)i, bytes / 4), EXIT_WORK);
	}
	if (is_wild)
		write_at(&client, memory[count - 1] + ((size_t)atol(argv[count]) << 20) + 64);
	if (*freed)
		CLIENT_CHECK(&client, cuMemFree(memory[atoi(freed)]), EXIT_WORK);
	CLIENT_CHECK(&client, cuCtxSynchronize(), EXIT_WORK);
	client_say(&client, "done", "done", "\"count\": %d", count);
	if (!strcmp(end, "stay"))
		pause();
	if (!strcmp(end, "kill"))
		kill(getpid(), SIGKILL);
	CLIENT_CHECK(&client, cuCtxSynchronize(), EXIT_WORK);
	return 0;
}
