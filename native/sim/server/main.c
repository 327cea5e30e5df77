/* nvidia-cuda-mps-server of the simulator: the poll loop and what the control daemon asks. */
#include "server.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LOOK_MS = 100 }; /* how often to look for marks on the machine */

static struct link_packet packet;

static void answer(struct server *server, int status)
{
	link_send(server->control, LINK_ANSWER, (struct link_head){ .status = status }, NULL, 0, LINK_NO_FD);
}

static void leave(struct server *server)
{
	machine_sleep_ms(machine_delay_ms(server->leaving ? 15 : 50, 1));
	exit(0);
}

static void asked_to_leave(struct server *server)
{
	unsigned workers = client_workers(server);

	if (packet.head.flags) { /* by force; not another word in the log */
		server->leaving = true;
		leave(server);
	}
	log_server("Server has been notified to shutdown");
	answer(server, (int)workers);
	if (workers) {
		log_server("Server was unable to shutdown due to %u active clients", workers);
		return;
	}
	log_server("Waiting for current clients to finish");
	log_server("Exiting");
	leave(server);
}

static void configure(struct server *server)
{
	struct link_settings fresh;

	if (packet.head.size != sizeof(fresh))
		return;
	memcpy(&fresh, packet.payload, sizeof(fresh));
	for (unsigned i = 0; i < fresh.limit_count && i < MACHINE_GPUS; i++) {
		if (i < server->settings.limit_count && fresh.limits[i].bytes == server->settings.limits[i].bytes)
			continue;
		log_server("Device pinned memory limit for device %s set to 0x%llx bytes", fresh.limits[i].device,
			   (unsigned long long)fresh.limits[i].bytes);
		server->stale_pid = 0;
	}
	server->settings = fresh;
}

static void control_said(struct server *server)
{
	int rc = link_receive(server->control, &packet, 0);

	if (rc == -ETIMEDOUT)
		return;
	if (rc < 0)
		exit(1); /* the control daemon has died: so do we, and our clients see 806 */
	switch (packet.head.kind) {
	case LINK_NEW_CLIENT:
		client_new(server, &packet);
		return;
	case LINK_CONFIG:
		configure(server);
		return;
	case LINK_GET_STATUS:
		answer(server, server->fault);
		return;
	case LINK_GET_CLIENTS:
		client_list(server, packet.head.flags);
		return;
	case LINK_TERMINATE:
		terminate_asked(server, packet.head.pid);
		return;
	case LINK_SHUTDOWN:
		asked_to_leave(server);
		return;
	}
}

static void forget_closed(struct server *server)
{
	unsigned kept = 0;

	for (unsigned i = 0; i < server->count; i++)
		if (server->list[i].fd >= 0)
			server->list[kept++] = server->list[i];
	server->count = kept;
}

static int wait_ms(const struct server *server)
{
	uint64_t next = fault_next_ns(server), now = machine_now_ns(), look = space_next_ns(server, now);
	uint64_t exception = exception_next_ns(now);

	if (exception && (!next || exception < next))
		next = exception;
	if (look && (!next || look < next))
		next = look;
	for (unsigned i = 0; i < server->count; i++)
		if (server->list[i].answer_ns && (!next || server->list[i].answer_ns < next))
			next = server->list[i].answer_ns;
	if (next <= now)
		return next ? 0 : LOOK_MS;
	return next - now < LOOK_MS * 1000000ull ? (int)((next - now + 999999) / 1000000) : LOOK_MS;
}

static void loop(struct server *server, struct pollfd *items)
{
	for (;;) { /* for ever: this is the server's life */
		unsigned count = server->count;

		items[0] = (struct pollfd){ server->control, exception_blocks() ? 0 : POLLIN, 0 };
		for (unsigned i = 0; i < count; i++)
			items[i + 1] = (struct pollfd){ server->list[i].fd, POLLIN, 0 };
		if (poll(items, count + 1, wait_ms(server)) < 0)
			continue;
		for (unsigned i = count; i-- > 0;) /* a process's contexts go before it does */
			if (items[i + 1].revents)
				client_said(server, &server->list[i]);
		if (items[0].revents & POLLIN)
			control_said(server);
		else if (items[0].revents)
			exit(1); /* the control daemon has died, as in control_said() */
		if (!exception_blocks())
			client_answers(server, machine_now_ns());
		space_run(server, machine_now_ns());
		exception_run(server, machine_now_ns());
		fault_run(server, machine_now_ns());
		terminate_run(server);
		forget_closed(server);
	}
}

int main(void)
{
	static struct server server;
	struct pollfd *items = calloc(SERVER_CONNECTIONS + 1, sizeof(*items));

	server.list = calloc(SERVER_CONNECTIONS, sizeof(*server.list));
	if (!items || !server.list)
		return 1;
	srand((unsigned)machine_knob("MPSD_SIM_SEED", (unsigned long)getpid()));
	startup(&server);
	loop(&server, items);
}
