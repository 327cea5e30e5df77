/* mpsd-sim: looks at the fake machine and changes it. */
#include "machine.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char usage[] =
	"usage: mpsd-sim status [--json]\n"
	"       mpsd-sim set-compute-mode GPU DEFAULT|EXCLUSIVE_PROCESS|PROHIBITED\n"
	"       mpsd-sim xid GPU [CODE]      a device fault: whoever has work there loses it\n"
	"       mpsd-sim lose GPU            NVML does not reach it; its work goes on\n"
	"       mpsd-sim return GPU          NVML reaches it again\n"
	"       mpsd-sim drain GPU           NVML reports that it is drained; its work goes on\n"
	"       mpsd-sim undrain GPU         it is not drained any more\n"
	"       mpsd-sim reset               forget what the dead left behind, and the Xids\n"
	"GPU is an ordinal or a UUID.  The machine is the directory MPSD_SIM_DIR.\n";

static const char *const kinds[] = { "free", "plain", "client", "server" };

static const char *mode_name(uint32_t mode)
{
	return mode == MACHINE_EXCLUSIVE ? "EXCLUSIVE_PROCESS" : mode == MACHINE_PROHIBITED ? "PROHIBITED" : "DEFAULT";
}

static void print_gpu(unsigned gpu, bool json, bool first)
{
	const struct machine_gpu *it = &machine_open()->gpus[gpu];
	unsigned long long used = machine_used_bytes(gpu) >> 20, total = it->memory_bytes >> 20;

	printf(json ? "%s{\"index\": %u, \"uuid\": \"%s\", \"mode\": \"%s\", \"used_mib\": %llu, \"total_mib\": %llu, \"xids\": %llu}" :
		      "%sGPU %u  %s  %s  %llu of %llu MiB used  %llu Xids\n",
	       json && !first ? ", " : "", gpu, it->uuid, mode_name(it->mode), used, total, (unsigned long long)it->xids);
}

static void print_process(const struct machine_process *it, bool json, bool first)
{
	unsigned long long used = 0;
	unsigned contexts = 0;

	for (unsigned gpu = 0; gpu < MACHINE_GPUS; gpu++) {
		used += it->used_bytes[gpu] >> 20;
		contexts += it->contexts[gpu];
	}
	printf(json ? "%s{\"pid\": %d, \"kind\": \"%s\", \"server\": %d, \"contexts\": %u, \"used_mib\": %llu}" :
		      "%spid %d  %s  server %d  %u contexts  %llu MiB\n",
	       json && !first ? ", " : "", it->pid, kinds[it->kind & 3], it->server_pid, contexts, used);
}

static int status(bool json)
{
	struct machine_state *state = machine_open();
	bool first = true;

	machine_lock();
	machine_reap();
	fputs(json ? "{\"gpus\": [" : "", stdout);
	for (unsigned i = 0; i < state->gpu_count; i++)
		print_gpu(i, json, i == 0);
	fputs(json ? "], \"processes\": [" : "", stdout);
	for (unsigned i = 0; i < MACHINE_PROCESSES; i++)
		if (state->processes[i].kind != MACHINE_FREE) {
			print_process(&state->processes[i], json, first);
			first = false;
		}
	fputs(json ? "]}\n" : "", stdout);
	machine_unlock();
	return 0;
}

static int find(const char *name)
{
	struct machine_view all = machine_all();
	int gpu = machine_find_gpu(&all, name);

	if (gpu < 0)
		fprintf(stderr, "mpsd-sim: no GPU is called %s\n", name);
	return gpu;
}

static int set_mode(const char *name, const char *mode)
{
	static const uint32_t modes[] = { MACHINE_DEFAULT, MACHINE_PROHIBITED, MACHINE_EXCLUSIVE };
	int gpu = find(name);

	for (unsigned i = 0; gpu >= 0 && i < 3; i++) {
		if (strcmp(mode, mode_name(modes[i])) != 0)
			continue;
		machine_lock();
		machine_open()->gpus[gpu].mode = modes[i];
		machine_unlock();
		return 0;
	}
	return 2;
}

/* The processes with contexts there look at `faulted` and do the rest. */
static int device_fault(const char *name, unsigned code)
{
	struct machine_state *state = machine_open();
	int gpu = find(name);

	if (gpu < 0)
		return 2;
	machine_xid((unsigned)gpu, code, 0, "GPU fault asked for with mpsd-sim");
	machine_lock();
	machine_reap();
	for (unsigned i = 0; i < MACHINE_PROCESSES; i++)
		if (state->processes[i].kind != MACHINE_FREE && state->processes[i].contexts[gpu])
			state->processes[i].faulted |= 1u << gpu;
	machine_unlock();
	return 0;
}

static int set_state(const char *verb, const char *name)
{
	int gpu = find(name);
	struct machine_gpu *of;

	if (gpu < 0)
		return 2;
	of = &machine_open()->gpus[gpu];
	machine_lock();
	if (strcmp(verb, "lose") == 0 || strcmp(verb, "return") == 0)
		of->is_lost = strcmp(verb, "lose") == 0;
	else
		of->is_drained = strcmp(verb, "drain") == 0;
	machine_unlock();
	return 0;
}

static bool is_state(const char *verb)
{
	static const char *const verbs[] = { "lose", "return", "drain", "undrain" };

	for (unsigned i = 0; i < sizeof(verbs) / sizeof(*verbs); i++)
		if (strcmp(verb, verbs[i]) == 0)
			return true;
	return false;
}

static int reset(void)
{
	struct machine_state *state = machine_open();
	char path[300];

	machine_lock();
	machine_reap();
	memset(state->xids, 0, sizeof(state->xids));
	for (unsigned i = 0; i < state->gpu_count; i++) {
		state->gpus[i].xids = 0;
		state->gpus[i].mode = MACHINE_DEFAULT;
		state->gpus[i].is_lost = false;
		state->gpus[i].is_drained = false;
	}
	snprintf(path, sizeof(path), "%s/kmsg", machine_directory());
	(void)unlink(path);
	close(machine_open_log(machine_directory())); /* other users may not make it */
	machine_unlock();
	return 0;
}

int main(int argc, char **argv)
{
	const char *verb = argc > 1 ? argv[1] : "";
	bool json = argc == 3 && strcmp(argv[2], "--json") == 0;

	if (strcmp(verb, "-h") == 0 || strcmp(verb, "--help") == 0)
		return fputs(usage, stdout) < 0;
	if (!machine_open()) {
		fprintf(stderr, "mpsd-sim: the machine in %s cannot be opened: %s\n", machine_directory(), strerror(errno));
		return 1;
	}
	if (strcmp(verb, "status") == 0 && (argc == 2 || json))
		return status(json);
	if (strcmp(verb, "set-compute-mode") == 0 && argc == 4)
		return set_mode(argv[2], argv[3]);
	if (strcmp(verb, "xid") == 0 && (argc == 3 || argc == 4))
		return device_fault(argv[2], argc == 4 ? (unsigned)atoi(argv[3]) : 79);
	if (argc == 3 && is_state(verb))
		return set_state(verb, argv[2]);
	if (strcmp(verb, "reset") == 0 && argc == 2)
		return reset();
	fputs(usage, stderr);
	return 2;
}
