/* terminate_client: end a client's work. After a fault it waits, as the vendor's does, until the culprit has gone; for a
 * process that is stopped, or frozen with its cgroup, until the process continues. */
#include "server.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const mounts[] = { "/sys/fs/cgroup", "/sys/fs/cgroup/unified" }; /* of cgroup v2, alone or beside v1 */

static struct connection *connection_of(struct server *server, pid_t pid)
{
	for (unsigned i = 0; i < server->count; i++)
		if (server->list[i].fd >= 0 && !server->list[i].refusal && server->list[i].pid == pid)
			return &server->list[i];
	return NULL;
}

/* Dead, but another process keeps its address space: its work cannot be ended. */
static bool is_left(const struct server *server, pid_t pid)
{
	for (unsigned i = 0; i < SERVER_HELD; i++)
		if (pid && server->held[i].pid == pid) /* 0: a place that is free */
			return true;
	return false;
}

/* Then a child has its connections, and the vendor's server takes the pid for no client's. */
static bool has_ended(pid_t pid)
{
	return kill(pid, 0) && errno == ESRCH;
}

static int terminate(struct server *server, pid_t pid)
{
	int result = is_left(server, pid) ? CUDA_INVALID_CONTEXT : CUDA_INVALID_VALUE;

	for (unsigned i = 0; i < server->count; i++) {
		struct connection *client = &server->list[i];

		if (client->fd < 0 || client->refusal || client->pid != pid || has_ended(pid))
			continue;
		result = client->terminated ? CUDA_INVALID_CONTEXT : 0;
		if (client->terminated)
			continue;
		client->terminated = true;
		if (client->context)
			log_server("MPS server requesting client {PID: %d, Context ID: %d} to exit", (int)pid, client->context);
		link_send(client->fd, LINK_FAULTED, (struct link_head){ .status = CUDA_TERMINATED }, NULL, 0, LINK_NO_FD);
	}
	if (result)
		return result;
	machine_sleep_ms(machine_delay_ms(6, 1));
	log_server("Client termination succeeded.");
	return 0;
}

static void answer(struct server *server, pid_t pid)
{
	link_send(server->control, LINK_ANSWER, (struct link_head){ .status = terminate(server, pid) }, NULL, 0, LINK_NO_FD);
}

/* Whether the file has this line; with `out`, a line that begins so, of which `out` gets the rest. */
static bool has_line(const char *path, const char *line, char *out, size_t size)
{
	char buffer[PATH_MAX + 16];
	size_t length = strlen(line);
	bool found = false;
	FILE *file = fopen(path, "re");

	while (file && !found && fgets(buffer, sizeof(buffer), file)) {
		buffer[strcspn(buffer, "\n")] = '\0';
		found = out ? strncmp(buffer, line, length) == 0 : strcmp(buffer, line) == 0;
	}
	if (file)
		fclose(file);
	if (found && out)
		snprintf(out, size, "%s", buffer + length);
	return found;
}

/* cgroup.events counts the cgroups above it too. It can be opened in a directory whose lock a test holds if the test has opened
 * it before; the vendor's server opens no file of a cgroup. */
static bool is_frozen(pid_t pid)
{
	char path[PATH_MAX + 64], group[PATH_MAX];
	bool found = false;

	snprintf(path, sizeof(path), "/proc/%d/cgroup", (int)pid);
	if (!has_line(path, "0::", group, sizeof(group)))
		return false;
	for (unsigned i = 0; i < sizeof(mounts) / sizeof(*mounts) && !found; i++) {
		snprintf(path, sizeof(path), "%s%s/cgroup.events", mounts[i], group);
		found = has_line(path, "frozen 1", NULL, 0);
	}
	return found;
}

/* The letter of proc(5) of a process, or of its thread; X if it has gone. */
static char state_of(const char *path)
{
	char state = 'X';
	FILE *stat = fopen(path, "re");

	if (!stat)
		return 'X';
	if (fscanf(stat, "%*d (%*[^)]) %c", &state) != 1)
		state = 'X';
	fclose(stat);
	return state;
}

static bool is_over(char state)
{
	return state == 'Z' || state == 'X';
}

/* The letter of a thread that has not ended, where one has not; the first may end alone. A stopped one comes first. */
static char state_of_threads(pid_t pid, pid_t *thread)
{
	char path[64], found = 'Z';
	struct dirent *entry;
	DIR *threads;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	threads = opendir(path);
	while (threads && found != 'T' && found != 't' && (entry = readdir(threads))) {
		char state;

		snprintf(path, sizeof(path), "/proc/%d/task/%.20s/stat", (int)pid, entry->d_name);
		state = state_of(path);
		if (is_over(state))
			continue;
		found = state;
		*thread = (pid_t)atoi(entry->d_name);
	}
	if (threads)
		closedir(threads);
	return found;
}

bool process_is_stopped(pid_t pid)
{
	char path[32], state;
	pid_t thread = pid;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	state = state_of(path);
	if (is_over(state))
		state = state_of_threads(pid, &thread);
	if (is_over(state)) /* it was killed, and its cgroup is frozen still */
		return false;
	return state == 'T' || state == 't' || is_frozen(thread); /* t: of a debugger */
}

static bool must_wait(struct server *server, pid_t pid)
{
	if (process_is_stopped(pid))
		return true;
	return fault_is_near(server) && server->culprit && connection_of(server, server->culprit);
}

void terminate_asked(struct server *server, pid_t pid)
{
	if (connection_of(server, pid) && must_wait(server, pid))
		server->to_terminate = pid;
	else
		answer(server, pid);
}

void terminate_run(struct server *server)
{
	pid_t pid = server->to_terminate;

	if (!pid || must_wait(server, pid))
		return;
	server->to_terminate = 0;
	answer(server, pid);
}
