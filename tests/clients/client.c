/* Start, options and words of a test client. */
#include "client.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

uint64_t client_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

double client_ms_since(uint64_t then_ns)
{
	return (double)(client_now_ns() - then_ns) / 1e6;
}

static void remove_arguments(int *argc, char **argv, int at, int count)
{
	for (int i = at; i + count <= *argc; i++)
		argv[i] = argv[i + count];
	*argc -= count;
}

const char *client_option(int *argc, char **argv, const char *option, const char *otherwise)
{
	for (int i = 1; i + 1 < *argc; i++)
		if (strcmp(argv[i], option) == 0) {
			const char *value = argv[i + 1];

			remove_arguments(argc, argv, i, 2);
			return value;
		}
	return otherwise;
}

bool client_flag(int *argc, char **argv, const char *option)
{
	for (int i = 1; i < *argc; i++)
		if (strcmp(argv[i], option) == 0) {
			remove_arguments(argc, argv, i, 1);
			return true;
		}
	return false;
}

void client_usage(const char *text)
{
	fprintf(stderr, "usage: %s\n", text);
	exit(EXIT_USAGE);
}

void client_options(struct client *client, const char *name, int *argc, char **argv)
{
	const char *start;

	*client = (struct client){ .name = name, .main_ns = client_now_ns() };
	client->json = client_flag(argc, argv, "--json");
	start = client_option(argc, argv, "--start-ns", NULL);
	client->start_ns = start ? strtoull(start, NULL, 10) : client->main_ns;
	client->ordinal = atoi(client_option(argc, argv, "--device", "0"));
	setvbuf(stdout, NULL, _IOLBF, 0);
}

void client_say(struct client *client, const char *event, const char *human, const char *json, ...)
{
	struct timespec now;
	va_list list;

	clock_gettime(CLOCK_REALTIME, &now);
	va_start(list, json);
	if (client->json) {
		printf("{\"event\": \"%s\", \"client\": \"%s\", \"pid\": %d, \"time\": %lld.%06ld, \"monotonic_ns\": %llu", event,
		       client->name, (int)getpid(), (long long)now.tv_sec, now.tv_nsec / 1000, (unsigned long long)client_now_ns());
		if (*json)
			printf(", ");
		vprintf(json, list);
		printf("}\n");
	} else {
		printf("[%10.1f ms %s %d] ", client_ms_since(client->start_ns), client->name, (int)getpid());
		vprintf(human, list);
		printf("\n");
	}
	va_end(list);
	fflush(stdout);
}

void client_fail(struct client *client, const char *call, CUresult error, int status)
{
	const char *name = NULL;
	char shown[64];

	snprintf(shown, sizeof(shown), "%.*s", (int)strcspn(call, "("), call);
	cuGetErrorName(error, &name);
	client_say(client, "error", "%s: %d %s", "\"call\": \"%s\", \"code\": %d, \"error\": \"%s\"", shown, (int)error,
		   name ? name : "?");
	exit(status);
}

void client_start(struct client *client)
{
	uint64_t before = client_now_ns();

	setenv("CUDA_MODULE_LOADING", "EAGER", 0); /* else a kernel's first launch loads it: milliseconds, within what is timed */
	CLIENT_CHECK(client, cuInit(0), EXIT_START);
	client->init_ms = client_ms_since(before);
	before = client_now_ns();
	for (int i = 0; i <= client->ordinal; i++) {
		CLIENT_CHECK(client, cuDeviceGet(&client->device, i), EXIT_START);
		CLIENT_CHECK(client, cuDevicePrimaryCtxRetain(&client->context, client->device), EXIT_START);
	}
	CLIENT_CHECK(client, cuCtxSetCurrent(client->context), EXIT_START);
	client->context_ms = client_ms_since(before);
	CLIENT_CHECK(client, cuModuleLoadData(&client->module, kernels_ptx), EXIT_START);
}

CUfunction client_kernel(struct client *client, const char *name)
{
	CUfunction function;

	CLIENT_CHECK(client, cuModuleGetFunction(&function, client->module, name), EXIT_START);
	return function;
}

CUresult client_launch(CUfunction function, unsigned grid, unsigned block, void **parameters)
{
	return cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, NULL, parameters, NULL);
}

enum { SM_SLOTS = 1024, SM_BLOCKS = 4000, SM_THREADS = 1024 };

int client_seen_sms(struct client *client)
{
	uint32_t seen[SM_SLOTS];
	CUdeviceptr m;
	void *parameters[] = { &m };
	int distinct = 0;

	CLIENT_CHECK(client, cuMemAlloc(&m, sizeof(seen)), EXIT_WORK);
	CLIENT_CHECK(client, cuMemsetD8(m, 0, sizeof(seen)), EXIT_WORK);
	CLIENT_CHECK(client, client_launch(client_kernel(client, "smids"), SM_BLOCKS, SM_THREADS, parameters), EXIT_WORK);
	CLIENT_CHECK(client, cuCtxSynchronize(), EXIT_WORK);
	CLIENT_CHECK(client, cuMemcpyDtoH(seen, m, sizeof(seen)), EXIT_WORK);
	for (int i = 0; i < SM_SLOTS; i++)
		distinct += seen[i] != 0;
	return distinct;
}

int client_sms(struct client *client)
{
	int sms = 0;

	CLIENT_CHECK(client, cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, client->device), EXIT_WORK);
	return sms;
}
