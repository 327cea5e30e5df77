/* Connections to the daemon: who they are by their first message, and clients' handshakes.
 *
 *   NEW --PROBE--> closed        NEW --HELLO--> GREETED --ATTACH--> PENDING --> GRANTED --DONE--> closed
 *   NEW --UI--> UI --quit--> QUITTER       NEW --SERVER--> taken by servers.c
 */
#include "daemon.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

static struct link_packet packet; /* too large for the stack; the daemon has one thread */

void peer_close(struct peer *peer)
{
	if (peer->fd >= 0)
		close(peer->fd);
	peer->fd = -1;
}

void peer_accept(struct control *control, int listener)
{
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	int on = 1;

	if (fd < 0) {
		if (errno == EMFILE || errno == ENFILE)
			machine_sleep_ms(1); /* the connection stays in the queue: do not spin */
		return;
	}
	mishap_at("accept");
	log_control(control, "Accepting connection...");
	if (control->peer_count == DAEMON_PEERS || setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) < 0 ||
	    mishap("refuse", "accept", NULL)) {
		close(fd);
		return;
	}
	control->peers[control->peer_count++] = (struct peer){ .fd = fd };
	link_send(fd, LINK_GREETING, (struct link_head){ 0 }, NULL, 0, LINK_NO_FD);
}

bool peer_is_awaited(const struct peer *peer)
{
	return peer->fd >= 0 && (peer->role == PEER_NEW || peer->role == PEER_GREETED);
}

unsigned peer_ui_count(const struct control *control)
{
	unsigned count = 0;

	for (unsigned i = 0; i < control->peer_count; i++)
		count += control->peers[i].fd >= 0 && control->peers[i].role == PEER_UI;
	return count;
}

static int say(struct peer *peer, enum link_kind kind, int status)
{
	return link_send(peer->fd, kind, (struct link_head){ .status = status }, NULL, 0, LINK_NO_FD);
}

/* Gives one end of a new pair to the server, the other to the client. */
static void grant(struct peer *peer, const struct mps_server *server)
{
	struct link_head head = peer->attach;
	int pair[2];

	head.pid = peer->pid;
	head.uid = (int32_t)peer->uid;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) {
		peer_close(peer);
		return;
	}
	if (link_send(server->fd, LINK_NEW_CLIENT, head, NULL, 0, pair[0]) < 0 ||
	    link_send(peer->fd, LINK_GRANT, head, NULL, 0, pair[1]) < 0)
		peer_close(peer);
	else
		peer->role = PEER_GRANTED;
	close(pair[0]);
	close(pair[1]);
}

static bool is_ready(const struct mps_server *server)
{
	return server && server->ready && !server->forced;
}

static void attach(struct control *control, struct peer *peer)
{
	struct mps_server *server = server_for(control, packet.uid);

	peer->attach = packet.head;
	peer->pid = packet.pid;
	peer->uid = packet.uid;
	log_control(control, "NEW CLIENT %d from user %u: %s", (int)peer->pid, (unsigned)peer->uid,
		    is_ready(server) ? "Server already exists" : "Server is not ready, push client to pending list");
	mishap_at("attach");
	if (is_ready(server)) {
		grant(peer, server);
		return;
	}
	peer->role = PEER_PENDING;
	server_want(control, peer->uid);
}

void peer_serve_pending(struct control *control)
{
	for (unsigned i = 0; i < control->peer_count; i++) {
		struct peer *peer = &control->peers[i];
		struct mps_server *server;

		if (peer->fd < 0 || peer->role != PEER_PENDING)
			continue;
		server = server_for(control, peer->uid);
		if (is_ready(server))
			grant(peer, server);
		else
			server_want(control, peer->uid);
	}
}

void peer_refuse_pending(struct control *control, int cuda_error)
{
	for (unsigned i = 0; i < control->peer_count; i++) {
		struct peer *peer = &control->peers[i];

		if (peer->fd < 0 || peer->role != PEER_PENDING)
			continue;
		say(peer, LINK_REFUSE, cuda_error);
		peer_close(peer);
	}
}

static void introduce(struct control *control, struct peer *peer)
{
	bool refuse = control->quitting && packet.head.kind != LINK_PROBE;

	switch (refuse ? 0 : packet.head.kind) {
	case LINK_PROBE:
		log_control(control, "User did not send valid credentials");
		say(peer, LINK_PROBED, 0);
		peer_close(peer);
		return;
	case LINK_HELLO:
		peer->role = PEER_GREETED;
		say(peer, LINK_WELCOME, 0);
		return;
	case LINK_UI:
		log_control(control, "NEW UI");
		peer->role = PEER_UI;
		peer->pid = packet.pid;
		peer->uid = packet.uid;
		say(peer, LINK_UI_READY, 0);
		return;
	case LINK_SERVER:
		if (server_adopt(control, peer, &packet))
			return;
	}
	peer_close(peer);
}

static void run_ui(struct control *control, struct peer *peer)
{
	struct reply reply = { 0 };

	packet.payload[packet.head.size < LINK_PAYLOAD ? packet.head.size : LINK_PAYLOAD - 1] = '\0';
	if (mishap_overlap(peer_ui_count(control))) {
		if (packet.pid % 2)
			say(peer, LINK_END, 1); /* status 1, and not a word */
		else
			peer_close(peer);
		return;
	}
	command_run(control, peer, packet.payload, &reply);
	for (size_t at = 0; at < reply.length; at += 16384)
		link_send(peer->fd, LINK_OUTPUT, (struct link_head){ 0 }, reply.text + at,
			  reply.length - at < 16384 ? reply.length - at : 16384, LINK_NO_FD);
	if (reply.quit) {
		peer->role = PEER_QUITTER;
		shutdown_quit(control, reply.quit_seconds);
	} else {
		say(peer, LINK_END, 0);
	}
	reply_print(&reply, NULL);
}

void peer_readable(struct control *control, struct peer *peer)
{
	int rc = link_receive(peer->fd, &packet, 0);

	if (rc == 0 && packet.fd >= 0)
		close(packet.fd); /* no peer should send a descriptor */
	if (rc == -ETIMEDOUT)
		return;
	if (rc == -EPROTO && peer_is_awaited(peer))
		return; /* ignore it and wait for more */
	if (rc < 0) {
		if (peer->role == PEER_UI)
			log_control(control, "UI closed");
		if (peer->role == PEER_NEW)
			log_control(control, "Unable to read new connection type information");
		peer_close(peer);
	} else if (peer->role == PEER_NEW) {
		introduce(control, peer);
	} else if (peer->role == PEER_GREETED && packet.head.kind == LINK_ATTACH && !control->quitting) {
		attach(control, peer);
	} else if (peer->role == PEER_UI && packet.head.kind == LINK_COMMAND) {
		run_ui(control, peer);
	} else {
		peer_close(peer);
	}
}
