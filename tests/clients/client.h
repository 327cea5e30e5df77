/* What the test clients share: options, time, and ending with a CUDA error.
 *
 * The same source runs on a GPU and on the simulator: plain C, the driver API, PTX as text.
 * Exit status: 0 done, 2 bad usage, 3 no start (cuInit, context), 5 work failed.
 */
#ifndef MPSD_CLIENT_H
#define MPSD_CLIENT_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

enum { EXIT_USAGE = 2, EXIT_START = 3, EXIT_WORK = 5 };

struct client {
	const char *name;
	bool json;
	uint64_t main_ns;  /* when main() began */
	uint64_t start_ns; /* --start-ns: when our parent started us; else main_ns */
	double init_ms, context_ms;
	int ordinal; /* --device: of the devices that it sees; it works there, and has a context on each one before it too */
	CUdevice device;
	CUcontext context;
	CUmodule module;
};

extern const char kernels_ptx[];

uint64_t client_now_ns(void); /* CLOCK_MONOTONIC */
double client_ms_since(uint64_t then_ns);
/* Takes --json, --start-ns and --device out of argv; what is left is the program's own. */
void client_options(struct client *client, const char *name, int *argc, char **argv);
const char *client_option(int *argc, char **argv, const char *option, const char *otherwise);
bool client_flag(int *argc, char **argv, const char *option);
void client_usage(const char *text);
void client_start(struct client *client);  /* init, primary context, module; exits 3 on failure */
CUfunction client_kernel(struct client *client, const char *name);
CUresult client_launch(CUfunction function, unsigned grid, unsigned block, void **parameters);
int client_sms(struct client *client);      /* the attribute's value */
int client_seen_sms(struct client *client); /* on how many SMs a kernel of ours really runs */
CUfunction broken_code_kernel(struct client *client); /* broken_code.c */
/* One line: the event's name, then what the format makes; JSON members in JSON mode. */
void client_say(struct client *client, const char *event, const char *human, const char *json, ...);
void client_fail(struct client *client, const char *call, CUresult error, int status) __attribute__((noreturn));

#define CLIENT_CHECK(client, call, status)                                     \
	do {                                                                   \
		CUresult rc_ = (call);                                         \
		if (rc_ != CUDA_SUCCESS)                                       \
			client_fail(client, #call, rc_, status);               \
	} while (0)

#endif
