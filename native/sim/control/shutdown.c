/* Ending servers: ask, and ask again after 200, 400, ... 3200 ms while they have clients; after a tenth of that if the
 * simulator runs fast. */
#include "daemon.h"

#include <signal.h>

enum { FIRST_BACKOFF_MS = 200, LAST_BACKOFF_MS = 3200, CUDA_MPS_CONNECTION_FAILED = 805 };

static struct link_packet packet;

static unsigned paced(unsigned ms)
{
	return machine_is_fast() ? ms / 10 : ms;
}

/* How many worker threads keep it; 0: it goes. */
static int try_once(struct control *control, struct mps_server *server, bool backoff)
{
	int workers;

	log_control(control, "Try shutting down server %d, backoff is %s", (int)server->pid, backoff ? "enabled" : "disabled");
	if (server_ask(control, server, LINK_SHUTDOWN, (struct link_head){ 0 }, &packet) < 0)
		return 0;
	workers = packet.head.status;
	if (workers)
		log_control(control, "Server %d has %d active worker threads. Server will not shutdown.", (int)server->pid, workers);
	return workers;
}

static void force(struct control *control, struct mps_server *server)
{
	server->forced = true;
	server->retry_ns = 0;
	log_control(control, "Force shutting down server %d", (int)server->pid);
	if (link_send(server->fd, LINK_SHUTDOWN, (struct link_head){ .flags = 1 }, NULL, 0, LINK_NO_FD) < 0)
		kill(server->pid, SIGKILL);
}

static void try_and_retry(struct control *control, struct mps_server *server, bool backoff)
{
	unsigned next = backoff ? server->backoff_ms * 2 : paced(FIRST_BACKOFF_MS), last = paced(LAST_BACKOFF_MS);

	server->stopping = true;
	server->retry_ns = 0;
	if (!try_once(control, server, backoff)) {
		server->forced = true; /* it is leaving: new clients wait for the next */
		return;
	}
	server->backoff_ms = next > last ? last : next;
	server->retry_ns = machine_now_ns() + server->backoff_ms * 1000000ull;
	log_control(control, "Control will try shutting down server %d again in at most %ums", (int)server->pid, server->backoff_ms);
}

void shutdown_server(struct control *control, struct mps_server *server, bool force_it)
{
	if (!server->ready && (server->fd < 0 || !force_it)) { /* still starting: clients that wait for it come first */
		server->stopping = true;
		server->backoff_ms = paced(FIRST_BACKOFF_MS);
		server->retry_ns = machine_now_ns() + server->backoff_ms * 1000000ull;
	} else if (!force_it) {
		try_and_retry(control, server, false);
	} else if (try_once(control, server, false)) {
		force(control, server);
	} else {
		server->forced = true; /* as in try_and_retry() */
	}
}

void shutdown_quit(struct control *control, long timeout_seconds)
{
	control->quitting = true;
	if (timeout_seconds >= 0) {
		log_control(control, "quit command issued with timeout of %ld", timeout_seconds);
		control->quit_force_ns = machine_now_ns() + (uint64_t)timeout_seconds * 1000000000u;
	}
	peer_refuse_pending(control, CUDA_MPS_CONNECTION_FAILED);
	for (unsigned i = 0; i < DAEMON_SERVERS; i++)
		if (control->servers[i].pid)
			shutdown_server(control, &control->servers[i], false);
}

void shutdown_retry(struct control *control)
{
	uint64_t now = machine_now_ns();
	bool force_all = control->quit_force_ns && now >= control->quit_force_ns;

	for (unsigned i = 0; i < DAEMON_SERVERS; i++) {
		struct mps_server *server = &control->servers[i];

		if (!server->pid || server->forced)
			continue;
		if (force_all && try_once(control, server, false))
			force(control, server);
		else if (force_all || !server->retry_ns || now < server->retry_ns)
			continue;
		else if (!server->ready)
			shutdown_server(control, server, false); /* its clients are still pending */
		else
			try_and_retry(control, server, server->backoff_ms > 0);
	}
	if (force_all)
		control->quit_force_ns = 0;
}

int shutdown_wait_ms(const struct control *control)
{
	uint64_t now = machine_now_ns(), next = control->quit_force_ns;

	for (unsigned i = 0; i < DAEMON_SERVERS; i++) {
		const struct mps_server *server = &control->servers[i];

		if (server->pid && server->retry_ns && (!next || server->retry_ns < next))
			next = server->retry_ns;
	}
	if (!next)
		return -1;
	return next <= now ? 0 : (int)((next - now + 999999) / 1000000);
}
