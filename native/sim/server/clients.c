/* Clients of the server: taking them in, hearing of them, seeing them off. */
#include "server.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PROCESS_MS = 8, CONTEXT_MS = 75, LONG_KERNEL_MS = 15 };

static struct link_packet packet;

static void describe(struct connection *client)
{
	char path[64], text[64] = "";
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/ns/pid", (int)client->pid);
	if (readlink(path, text, sizeof(text) - 1) > 5)
		client->namespace_id = strtoull(text + 5, NULL, 10); /* after "pid:[" */
	snprintf(path, sizeof(path), "/proc/%d/cmdline", (int)client->pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || read(fd, client->command, sizeof(client->command) - 1) < 0)
		client->command[0] = '\0';
	if (fd >= 0)
		close(fd);
}

unsigned client_workers(const struct server *server)
{
	unsigned workers = 0;

	for (unsigned i = 0; i < server->count; i++)
		workers += server->list[i].fd >= 0 && !server->list[i].refusal;
	return workers;
}

static unsigned contexts_on(const struct server *server, unsigned gpu)
{
	unsigned count = 0;

	for (unsigned i = 0; i < server->count; i++)
		count += server->list[i].fd >= 0 && server->list[i].context && !server->list[i].refusal && server->list[i].gpu == gpu;
	return count;
}

static struct connection *process_of(struct server *server, pid_t pid)
{
	for (unsigned i = 0; i < server->count; i++)
		if (server->list[i].fd >= 0 && server->list[i].pid == pid && server->list[i].context == 0)
			return &server->list[i];
	return NULL;
}

static unsigned long max_clients(void)
{
	return machine_knob("MPSD_SIM_MAX_CLIENTS", 48);
}

static int refusal_of(const struct server *server, const struct connection *client)
{
	if (server->fault)
		return CUDA_NOT_READY;
	if (client->context && contexts_on(server, client->gpu) >= max_clients())
		return CUDA_MAX_CLIENTS;
	if (client->context && space_is_worn(server))
		return CUDA_ILLEGAL_STATE;
	return 0;
}

static void log_arrival(struct server *server, const struct connection *client)
{
	struct machine_gpu *gpu = &machine_open()->gpus[client->gpu];
	int pid = client->pid, context = client->context;

	if (client->refusal == CUDA_NOT_READY) {
		log_server("Server teardown in progress. Refusing to accept new client {PID: %d, Context ID: %d}", pid, context);
		log_server("Failed to accept client {PID: %d, Context ID: %d} with status %d", pid, context, client->refusal);
		return;
	}
	log_server("Client {PID: %d, Context ID: %d} connected", pid, context);
	log_server("Creating worker thread for client {PID: %d, Context ID: %d}", pid, context);
	if (context) {
		log_server("Device %s (uuid %s) is associated", gpu->name, gpu->uuid);
		if (client->refusal == CUDA_MAX_CLIENTS)
			log_server("Failed to accept new client. Maximum number of clients (%lu) reached.", max_clients());
		else
			log_server("Status of client {PID: %d, Context ID: %d} is ACTIVE", pid, context);
	}
	server->stale_pid = client->pid;
	server->stale_context = context;
}

/* The request's flags select the GPU; contexts are created one at a time. */
void client_new(struct server *server, const struct link_packet *said)
{
	struct connection *client = &server->list[server->count];
	uint64_t now = machine_now_ns();
	struct connection *process = process_of(server, said->head.pid);

	if (said->fd < 0)
		return;
	if (server->count == SERVER_CONNECTIONS) {
		close(said->fd);
		return;
	}
	log_server("Received new client request for {PID: %d, Context ID: %d}", (int)server->stale_pid, server->stale_context);
	if (server->destroyed && !server->fault) {
		create_device_contexts(server);
		server->destroyed = false;
	}
	*client = (struct connection){ .fd = said->fd, .pid = said->head.pid, .uid = (uid_t)said->head.uid,
				       .context = said->head.context, .gpu = said->head.flags % MACHINE_GPUS,
				       .terms = process && said->head.context ? process->terms : server->settings };
	client->refusal = refusal_of(server, client);
	client->id = process && client->context ? process->id : ++server->next_id;
	describe(client);
	space_open_files(client);
	client->answer_ns = now + machine_delay_ms(PROCESS_MS, 1) * 1000000ull;
	if (client->context && !client->refusal) {
		uint64_t start = server->context_free_ns > now ? server->context_free_ns : now;

		client->answer_ns = server->context_free_ns = start + machine_delay_ms(CONTEXT_MS, 2) * 1000000ull;
	}
	log_arrival(server, client);
	server->count++;
}

/* When the client's work ends by itself; 0: it has none. */
static uint64_t work_end_ns(const struct link_page *page)
{
	uint64_t began = page ? link_began_ns(page) : 0;

	return began ? began + (page->kernel_started_ns ? page->kernel_needs_ns : 0) + page->queued_needs_ns : 0;
}

static uint64_t first_needs_ns(const struct link_page *page)
{
	return page->kernel_started_ns ? page->kernel_needs_ns : page->effects[page->first_effect % LINK_EFFECTS].needs_ns;
}

/* A process that dies in a kernel that has run for more than 12 ms ends its co-runners (measured: in none of the cases up to 12
 * ms). The work of a frozen process also ends, although its threads do not notice. */
static bool died_in_kernel(const struct connection *client)
{
	return client->page && !client->bye && !client->terminated &&
	       first_needs_ns(client->page) > LONG_KERNEL_MS * 1000000ull && machine_now_ns() < work_end_ns(client->page);
}

/* A process that keeps the address space delays the consequences: perhaps none will follow. The work goes on for as long; if no
 * process keeps it, it is over. */
static void die(struct server *server, const struct connection *client, bool is_harmful)
{
	if (client->space_pid && space_is_held(client->space_pid))
		space_hold(server, client, is_harmful);
	else if (is_harmful)
		fault_begin(server, client, FAULT_KILLED, "channel error");
}

/* An SM exception stops all contexts of its server within a millisecond, before any process knows of it. */
static bool is_stopped(const struct connection *client)
{
	return client->doomed && client->fail_class != FAULT_MMU && client->fail_class != FAULT_KILLED;
}

/* Also work whose time is over, of a stopped or starved process: on the device it is done. */
static bool left_work(const struct server *server, const struct connection *client)
{
	return client->work_end_ns && !server->fault && client->context && !client->doomed && !client->bye && !client->terminated;
}

static bool has_more(const struct server *server, pid_t pid)
{
	for (unsigned i = 0; i < server->count; i++)
		if (server->list[i].fd >= 0 && server->list[i].pid == pid)
			return true;
	return false;
}

static void client_gone(struct server *server, struct connection *client)
{
	bool killed = !server->fault && client->context && !is_stopped(client) && died_in_kernel(client);
	int pid = client->pid, context = client->context;

	close(client->fd);
	client->fd = -1;
	space_see_end(server, client);
	client->space_pid = client->page ? client->page->space_pid : 0;
	client->work_end_ns = work_end_ns(client->page);
	exception_client_gone(server, client);
	if (client->refusal)
		return;
	log_server("Server failed to recevie command with status 806, assuming client {PID: %d, Context ID: %d} exit", pid, context);
	if (context) {
		unsigned left = 0;

		for (unsigned i = 0; i < server->count; i++)
			left += server->list[i].fd >= 0 && server->list[i].context && !server->list[i].refusal;
		log_server("Client {PID: %d, Context ID: %d} exiting. %sNumber of active client contexts is %u.", pid, context,
			   client->in_reset ? "Worker is in reset. " : "", left);
	} else {
		log_server("Client process %d disconnected", pid);
	}
	if (killed || left_work(server, client))
		die(server, client, killed);
	if (!client->bye && !has_more(server, pid))
		space_forget(server, client->space_pid); /* a process that waits for this knows that it writes no more */
	if (client->page)
		munmap(client->page, 4096);
	client->page = NULL;
	fault_client_gone(server);
}

void client_said(struct server *server, struct connection *client)
{
	int rc = link_receive(client->fd, &packet, 0);

	if (rc == 0 && packet.fd >= 0)
		close(packet.fd);
	if (rc == -ETIMEDOUT)
		return;
	if (rc < 0) {
		client_gone(server, client);
	} else if (packet.head.kind == LINK_BYE) {
		client->bye = true;
	} else if (packet.head.kind == LINK_FAULT && packet.head.status > 0 && packet.head.status < FAULT_CLASSES) {
		packet.payload[packet.head.size < LINK_PAYLOAD ? packet.head.size : LINK_PAYLOAD - 1] = '\0';
		fault_begin(server, client, (enum fault_class)packet.head.status, packet.payload);
	}
}

/* One page of them, from the given row on; an empty one is the last. */
void client_list(struct server *server, unsigned from)
{
	struct link_client *rows = (struct link_client *)packet.payload;
	unsigned count = 0;

	for (unsigned i = 0; i < server->count && (count + 1) * sizeof(*rows) <= LINK_PAYLOAD; i++) {
		struct connection *client = &server->list[i];

		if (client->fd < 0 || client->refusal)
			continue;
		if (from) {
			from--;
			continue;
		}
		rows[count] = (struct link_client){ .pid = client->pid, .context = client->context, .id = client->id,
						    .gpu = client->gpu, .namespace_id = client->namespace_id };
		memcpy(rows[count++].command, client->command, sizeof(rows->command));
	}
	link_send(server->control, LINK_ANSWER, (struct link_head){ 0 }, rows, count * sizeof(*rows), LINK_NO_FD);
}
