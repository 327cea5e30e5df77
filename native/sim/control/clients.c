/* Commands about clients and devices. */
#include "daemon.h"

#include <stdlib.h>
#include <string.h>

enum { CUDA_INVALID_VALUE = 1, CUDA_NOT_PERMITTED = 800, MOST_ROWS = 8192 };

static struct link_packet packet;

/* The rows stay valid until the next question.  Their number; 0 too when the server does not answer. */
static unsigned ask_clients(struct control *control, struct mps_server *server, const struct link_client **rows)
{
	static struct link_client all[MOST_ROWS];
	unsigned count = 0, more;

	*rows = all;
	if (!server->ready)
		return 0;
	do { /* page by page */
		if (server_ask(control, server, LINK_GET_CLIENTS, (struct link_head){ .flags = count }, &packet) < 0)
			return 0;
		more = packet.head.size / sizeof(*all);
		more = more < MOST_ROWS - count ? more : MOST_ROWS - count;
		memcpy(&all[count], packet.payload, more * sizeof(*all));
		count += more;
	} while (more);
	return count;
}

/* Of a process with several contexts. */
static bool is_first_of(const struct link_client *rows, unsigned at)
{
	for (unsigned i = 0; i < at; i++)
		if (rows[i].context && rows[i].pid == rows[at].pid)
			return false;
	return true;
}

void command_client_list(struct control *control, const struct peer *peer, struct words *words, struct reply *reply)
{
	struct mps_server *server = command_server(control, words->argv[1], reply);
	const struct link_client *rows;
	unsigned count = server ? ask_clients(control, server, &rows) : 0;

	(void)peer;
	for (unsigned i = 0; i < count; i++)
		if (rows[i].context && is_first_of(rows, i))
			reply_print(reply, "%d\n", rows[i].pid);
}

static void ps_server(struct control *control, struct mps_server *server, bool *headed, struct reply *reply)
{
	struct machine_state *state = machine_open();
	const char *format = "%-10s%-10s%-15s%-26s%-15s%-15s\n";
	const struct link_client *rows;
	unsigned count = ask_clients(control, server, &rows);

	for (unsigned i = 0; i < count; i++) {
		if (rows[i].context == 0 || rows[i].gpu >= MACHINE_GPUS)
			continue;
		if (!*headed)
			reply_print(reply, format, "PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND");
		*headed = true;
		reply_print(reply, "%-10d%-10u%-15d%-26.22s%-15llu%-15s\n", rows[i].pid, rows[i].id, (int)server->pid,
			    state->gpus[rows[i].gpu].uuid, (unsigned long long)rows[i].namespace_id, rows[i].command);
	}
}

void command_ps(struct control *control, const struct peer *peer, struct words *words, struct reply *reply)
{
	bool one = words->argv[1] && strncmp(words->argv[1], "-p", 2) == 0, headed = false;
	const char *word = one && words->argv[1][2] ? words->argv[1] + 2 : words->argv[2];
	int pid = one && word ? atoi(word) : 0;
	struct mps_server *server = server_by_pid(control, pid);

	(void)peer;
	if (one && !server)
		reply_print(reply, "Server %d not found\nServer %d not found\n\n", pid, pid);
	else if (one)
		ps_server(control, server, &headed, reply);
	else if (!server_any(control))
		reply_print(reply, "Server not found\n");
	else
		for (unsigned i = 0; i < DAEMON_SERVERS; i++)
			if (control->servers[i].pid)
				ps_server(control, &control->servers[i], &headed, reply);
}

static void device_clients(struct control *control, struct mps_server *server, struct reply *reply)
{
	struct machine_state *state = machine_open();
	const struct link_client *rows;
	unsigned count = ask_clients(control, server, &rows);

	for (unsigned gpu = 0; gpu < state->gpu_count; gpu++) {
		bool headed = false;

		for (unsigned i = 0; i < count; i++) {
			if (rows[i].context == 0 || rows[i].gpu != gpu)
				continue;
			if (!headed)
				reply_print(reply, "[%u] 00:00.0, %s\n", gpu, state->gpus[gpu].name);
			headed = true;
			reply_print(reply, "%d.%d\n", rows[i].pid, rows[i].context);
		}
	}
}

void command_device_clients(struct control *control, const struct peer *peer, struct words *words, struct reply *reply)
{
	struct mps_server *server;

	(void)peer;
	if (words->argv[1] && atoi(words->argv[1])) {
		server = command_server(control, words->argv[1], reply);
		if (server)
			device_clients(control, server, reply);
		return;
	}
	for (unsigned i = 0; i < DAEMON_SERVERS; i++)
		if (control->servers[i].pid)
			device_clients(control, &control->servers[i], reply);
}

/* Prints a CUresult: 0 when the client's work has been ended. */
void command_terminate(struct control *control, const struct peer *peer, struct words *words, struct reply *reply)
{
	struct mps_server *server = command_server(control, words->argv[1], reply);
	int pid = words->argv[1] && words->argv[2] ? atoi(words->argv[2]) : 0;

	if (!server) {
		reply_print(reply, "Server %d not found!\n1\n", words->argv[1] ? atoi(words->argv[1]) : 0);
		return;
	}
	if (!command_may_change(control, peer, server, reply)) {
		reply_print(reply, "%d\n", CUDA_NOT_PERMITTED);
		return;
	}
	if (server_ask(control, server, LINK_TERMINATE, (struct link_head){ .pid = pid }, &packet) < 0)
		packet.head.status = CUDA_INVALID_VALUE;
	if (packet.head.status == CUDA_INVALID_VALUE)
		reply_print(reply, "Invalid process %d!\n", pid);
	reply_print(reply, "%d\n", packet.head.status);
}

static void print_devices(bool csv, struct reply *reply)
{
	struct machine_view all = machine_all(), view;
	enum machine_view_error error;
	const char *head = csv ? "%s,%s,%s,%s,%s\n" : "%-16s%-15s%-42s%-34s%s\n";
	const char *row = csv ? "%u,0000:00.%02x.00,%s,%s,N/A\n" : "%-16u0000:00.%02x.00  %-42s%-34sN/A\n";

	view = machine_visible(&all, getenv("CUDA_VISIBLE_DEVICES"), &error);
	reply_print(reply, head, "Device Ordinal", "PCI IDs", "UUID", "Name", "Attributes");
	for (unsigned i = 0; i < view.count; i++)
		reply_print(reply, row, i, view.gpu[i] + 6, machine_open()->gpus[view.gpu[i]].uuid,
			    machine_open()->gpus[view.gpu[i]].name);
}

/* The daemon's devices, then those of one server or of all. */
void command_device_query(struct control *control, const struct peer *peer, struct words *words, struct reply *reply)
{
	bool csv = false;
	int pid = 0;

	(void)peer;
	for (unsigned i = 1; words->argv[i]; i++) {
		if (strcmp(words->argv[i], "--csv") == 0) {
			csv = true;
		} else if (!(pid = atoi(words->argv[i]))) {
			reply_print(reply, "Invalid command format\n");
			return;
		}
	}
	if (pid && !server_by_pid(control, pid)) {
		reply_print(reply, "Server %d not found\n", pid);
		return;
	}
	reply_print(reply, "Default\n");
	print_devices(csv, reply);
	for (unsigned i = 0; i < DAEMON_SERVERS; i++) {
		if (!control->servers[i].ready || (pid && control->servers[i].pid != pid))
			continue;
		reply_print(reply, "\nServer %d\n", (int)control->servers[i].pid);
		print_devices(csv, reply);
	}
}
