/* The poll loop: one thread waits for all peers. While a new peer has not introduced itself, the loop waits for it alone, as
 * the vendor's does. */
#include "daemon.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

enum { FIXED = 4 };

static void forget_closed(struct control *control)
{
	unsigned kept = 0;

	for (unsigned i = 0; i < control->peer_count; i++)
		if (control->peers[i].fd >= 0)
			control->peers[kept++] = control->peers[i];
	control->peer_count = kept;
}

static bool anyone_awaited(const struct control *control)
{
	for (unsigned i = 0; i < control->peer_count; i++)
		if (peer_is_awaited(&control->peers[i]))
			return true;
	return false;
}

/* A server's connection belongs to its peer entry until the server introduces itself; then servers[] owns it. */
static unsigned fill(const struct control *control, struct pollfd *items)
{
	bool busy = anyone_awaited(control);
	unsigned count = 0;

	items[count++] = (struct pollfd){ busy ? -1 : control->listener, POLLIN, 0 };
	items[count++] = (struct pollfd){ busy ? -1 : control->privileged, POLLIN, 0 };
	items[count++] = (struct pollfd){ control->fifo, POLLIN, 0 };
	items[count++] = (struct pollfd){ control->children, POLLIN, 0 };
	for (unsigned i = 0; i < DAEMON_SERVERS; i++)
		items[count++] = (struct pollfd){ control->servers[i].pid ? control->servers[i].fd : -1, POLLIN, 0 };
	for (unsigned i = 0; i < control->peer_count; i++)
		items[count++] = (struct pollfd){ !busy || peer_is_awaited(&control->peers[i]) ? control->peers[i].fd : -1, POLLIN, 0 };
	return count;
}

static void handle(struct control *control, const struct pollfd *items, unsigned peers)
{
	if (items[2].revents)
		log_from_fifo(control);
	if (items[0].revents)
		peer_accept(control, control->listener);
	else if (items[1].revents) /* one at a time */
		peer_accept(control, control->privileged);
	for (unsigned i = 0; i < DAEMON_SERVERS; i++)
		if (items[FIXED + i].revents && control->servers[i].fd == items[FIXED + i].fd)
			server_said(control, &control->servers[i]);
	for (unsigned i = 0; i < peers; i++)
		if (items[FIXED + DAEMON_SERVERS + i].revents && control->peers[i].fd >= 0)
			peer_readable(control, &control->peers[i]);
	if (items[3].revents)
		server_reap(control);
	shutdown_retry(control);
}

void run_loop(struct control *control)
{
	struct pollfd *items = calloc(FIXED + DAEMON_SERVERS + DAEMON_PEERS, sizeof(*items));

	while (items) { /* for ever: this is the daemon's life */
		unsigned count = fill(control, items);
		unsigned peers = control->peer_count;

		if (poll(items, count, shutdown_wait_ms(control)) < 0)
			continue;
		handle(control, items, peers);
		forget_closed(control);
		if (control->quitting && !server_any(control))
			stop_daemon(control);
	}
}
