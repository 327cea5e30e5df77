/* counter: counts on the device, one line a second; ends with the CUDA error that stops it.
 *
 *   counter [--seconds S] [--until-release] [--ms MS] [--kernel-us US] [--grid BLOCKS] [--mem MiB] [--json]
 *           [--start-ns NS] [--leave-first]
 *
 * --until-release: ends when its standard input does, after S seconds at the latest.  --grid: so many blocks of 1024 threads.
 * --leave-first: another thread counts; the first one ends when the standard input does.
 */
#include "client.h"

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { CYCLES_PER_US = 1755 };

struct run {
	double seconds;
	bool until_release;
	double tick_ms;
	uint64_t cycles;
	unsigned grid; /* 0: one small block */
	uint64_t kernels;
	double worst_ms;
	CUdeviceptr count;
	CUfunction spin;
	size_t mem_bytes;
	struct client client;
};

static uint64_t read_count(struct client *client, struct run *run)
{
	uint64_t value = 0;

	CLIENT_CHECK(client, cuMemcpyDtoH(&value, run->count, sizeof(value)), EXIT_WORK);
	return value;
}

static void step(struct client *client, struct run *run)
{
	void *parameters[] = { &run->count, &run->cycles };
	uint64_t before = client_now_ns();
	double ms;

	CLIENT_CHECK(client, client_launch(run->spin, run->grid ? run->grid : 1, run->grid ? 1024 : 32, parameters), EXIT_WORK);
	CLIENT_CHECK(client, cuCtxSynchronize(), EXIT_WORK);
	ms = client_ms_since(before);
	run->worst_ms = ms > run->worst_ms ? ms : run->worst_ms;
	run->kernels++;
}

static void prepare(struct client *client, struct run *run)
{
	CUdeviceptr extra;

	client_start(client);
	run->spin = client_kernel(client, "spin");
	CLIENT_CHECK(client, cuMemAlloc(&run->count, 4096), EXIT_WORK);
	CLIENT_CHECK(client, cuMemsetD8(run->count, 0, 4096), EXIT_WORK);
	if (run->mem_bytes)
		CLIENT_CHECK(client, cuMemAlloc(&extra, run->mem_bytes), EXIT_WORK);
	step(client, run);
	run->worst_ms = 0; /* the first one loads the kernel */
	client_say(client, "ready", "first kernel done %.1f ms after the start (init %.1f ms, context %.1f ms), %d SMs",
		   "\"first_kernel_ms\": %.3f, \"init_ms\": %.3f, \"context_ms\": %.3f, \"sms\": %d",
		   client_ms_since(client->start_ns), client->init_ms, client->context_ms, client_sms(client));
}

static bool is_released(const struct run *run)
{
	struct pollfd input = { .fd = STDIN_FILENO, .events = POLLIN };

	return run->until_release && poll(&input, 1, 0) > 0;
}

static void count(struct client *client, struct run *run)
{
	uint64_t start = client_now_ns(), ticks = 0;

	while (client_ms_since(start) < run->seconds * 1e3 && !is_released(run)) {
		step(client, run);
		if (client_ms_since(start) < (double)(ticks + 1) * run->tick_ms)
			continue;
		ticks = (uint64_t)(client_ms_since(start) / run->tick_ms);
		client_say(client, "tick", "count %llu, worst stall %.2f ms", "\"count\": %llu, \"worst_ms\": %.3f",
			   (unsigned long long)read_count(client, run), run->worst_ms);
	}
	client_say(client, "end", "count %llu after %llu kernels, worst stall %.2f ms",
		   "\"count\": %llu, \"kernels\": %llu, \"worst_ms\": %.3f", (unsigned long long)read_count(client, run),
		   (unsigned long long)run->kernels, run->worst_ms);
}

static void *work(void *argument)
{
	struct run *run = argument;

	prepare(&run->client, run);
	count(&run->client, run);
	exit(0);
}

static void leave(struct run *run)
{
	char byte;
	pthread_t thread;

	if (pthread_create(&thread, NULL, work, run) != 0)
		exit(EXIT_START);
	while (read(STDIN_FILENO, &byte, 1) > 0)
		continue;
	syscall(SYS_exit, 0); /* of this thread alone */
}

int main(int argc, char **argv)
{
	static struct run run;
	bool leaves_first;

	client_options(&run.client, "counter", &argc, argv);
	run.until_release = client_flag(&argc, argv, "--until-release");
	leaves_first = client_flag(&argc, argv, "--leave-first");
	run.seconds = atof(client_option(&argc, argv, "--seconds", "10"));
	run.tick_ms = atof(client_option(&argc, argv, "--ms", "1000"));
	run.cycles = (uint64_t)(atof(client_option(&argc, argv, "--kernel-us", "100")) * CYCLES_PER_US);
	run.grid = (unsigned)strtoul(client_option(&argc, argv, "--grid", "0"), NULL, 10);
	run.mem_bytes = strtoull(client_option(&argc, argv, "--mem", "0"), NULL, 10) << 20;
	if (argc > 1 || run.tick_ms <= 0)
		client_usage("counter [--seconds S] [--until-release] [--ms MS] [--kernel-us US] [--grid BLOCKS] [--mem MiB] [--json] "
			     "[--start-ns NS] [--device N] [--leave-first]");
	if (leaves_first)
		leave(&run);
	work(&run);
}
