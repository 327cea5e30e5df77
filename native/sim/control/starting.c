/* Commands about starting servers and how they are. */
#include "daemon.h"

#include <stdlib.h>
#include <string.h>

static struct link_packet packet;

void command_server_status(struct control *control, const struct peer *peer, struct words *words, struct reply *reply)
{
	struct mps_server *server;
	char *end = NULL;

	(void)peer;
	if (words->argv[1])
		(void)!strtol(words->argv[1], &end, 10);
	if (!end || end == words->argv[1]) {
		reply_print(reply, "A server PID is required\n");
		return;
	}
	server = command_server(control, words->argv[1], reply);
	if (!server)
		return;
	if (!server->ready)
		reply_print(reply, "INITIALIZING\n");
	else if (server_ask(control, server, LINK_GET_STATUS, (struct link_head){ 0 }, &packet) == 0)
		reply_print(reply, "%s\n", packet.head.status ? "FAULT" : "ACTIVE");
}

static bool parse_uid(const struct words *words, uid_t *uid, struct reply *reply)
{
	const char *option = words->argv[1], *value = words->argv[2];
	char *end = NULL;

	if (option && value && strcmp(option, "-uid") != 0 && strncmp(option, "--", 2) != 0) {
		reply_print(reply, "Invalid start_server cmd. Expected cmd: start_server -uid <user id>\n");
		return false;
	}
	if (option && value && strcmp(option, "-uid") == 0)
		*uid = (uid_t)strtol(value, &end, 10);
	if (end && end != value)
		return true;
	reply_print(reply, "A user id (UID) is required to start a new server\n");
	return false;
}

void command_start_server(struct control *control, const struct peer *peer, struct words *words, struct reply *reply)
{
	uid_t uid;

	if (!parse_uid(words, &uid, reply) || (uid != peer->uid && !command_may_change(control, peer, NULL, reply)))
		return;
	if (control->multiuser)
		uid = control->owner;
	if (server_any(control) && !server_for(control, uid)) {
		control->start_wanted = true;
		control->start_uid = uid;
	}
	server_want(control, uid);
}
