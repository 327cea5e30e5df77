/* The command language of driver 580: words, privileges, the table, and ending things. */
#include "daemon.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Appends; a NULL format frees the text instead. */
void reply_print(struct reply *reply, const char *format, ...)
{
	va_list list, again;
	char *grown;
	int length;

	if (!format) {
		free(reply->text);
		*reply = (struct reply){ 0 };
		return;
	}
	va_start(list, format);
	va_copy(again, list);
	length = vsnprintf(NULL, 0, format, list);
	grown = realloc(reply->text, reply->length + (size_t)length + 1);
	if (grown) {
		vsnprintf(grown + reply->length, (size_t)length + 1, format, again);
		reply->text = grown;
		reply->length += (size_t)length;
	}
	va_end(again);
	va_end(list);
}

struct mps_server *command_server(struct control *control, const char *word, struct reply *reply)
{
	int pid = word ? atoi(word) : 0;
	struct mps_server *server = server_by_pid(control, pid);

	if (!server)
		reply_print(reply, "Server %d not found\n", pid);
	return server;
}

static bool is_owner(const struct control *control, const struct peer *peer)
{
	return peer->uid == 0 || peer->uid == control->owner;
}

bool command_may_change(const struct control *control, const struct peer *peer, const struct mps_server *server,
			struct reply *reply)
{
	if (is_owner(control, peer) || (server && server->uid == peer->uid))
		return true;
	reply_print(reply, "Insufficient privileges for UID %u. Control deamon settings can only be "
		    "modified by the user who started it or by the root user.\n", (unsigned)peer->uid);
	return false;
}

static void get_server_list(struct control *control, const struct peer *peer, struct words *words, struct reply *reply)
{
	(void)peer, (void)words;
	for (unsigned i = 0; i < DAEMON_SERVERS; i++)
		if (control->servers[i].pid)
			reply_print(reply, "%d\n", (int)control->servers[i].pid);
}

static void shutdown_one(struct control *control, const struct peer *peer, struct words *words, struct reply *reply)
{
	struct mps_server *server = command_server(control, words->argv[1], reply);

	if (server && command_may_change(control, peer, server, reply))
		shutdown_server(control, server, words->argv[2] && strcmp(words->argv[2], "-f") == 0);
}

static void quit(struct control *control, const struct peer *peer, struct words *words, struct reply *reply)
{
	char *end = NULL;
	long seconds = -1;

	if (!is_owner(control, peer)) {
		reply_print(reply, "Not enough privilege to execute quit command\n");
		return;
	}
	reply->quit = true;
	reply->quit_seconds = -1;
	if (words->argv[1] && strcmp(words->argv[1], "-t") == 0 && words->argv[2])
		seconds = strtol(words->argv[2], &end, 10);
	if (end && end != words->argv[2] && seconds >= 0)
		reply->quit_seconds = seconds;
}

static const struct {
	const char *name;
	command_handler *run;
} commands[] = {
	{ "get_server_list", get_server_list },
	{ "get_server_status", command_server_status },
	{ "start_server", command_start_server },
	{ "shutdown_server", shutdown_one },
	{ "quit", quit },
	{ "get_client_list", command_client_list },
	{ "get_device_client_list", command_device_clients },
	{ "ps", command_ps },
	{ "terminate_client", command_terminate },
	{ "device_query", command_device_query },
	{ "set_default_active_thread_percentage", command_default_percent },
	{ "get_default_active_thread_percentage", command_default_percent },
	{ "set_active_thread_percentage", command_percent },
	{ "get_active_thread_percentage", command_percent },
	{ "set_default_device_pinned_mem_limit", command_default_limit },
	{ "get_default_device_pinned_mem_limit", command_default_limit },
	{ "set_device_pinned_mem_limit", command_limit },
	{ "get_device_pinned_mem_limit", command_limit },
	{ "set_default_client_priority", command_priority },
	{ "get_default_client_priority", command_priority },
};

static void split(const char *line, struct words *words)
{
	char *rest = words->copy, *word;
	unsigned count = 0;

	snprintf(words->copy, sizeof(words->copy), "%s", line);
	while (count < 7 && (word = strtok_r(rest, " \t\r\n\v\f", &rest)))
		words->argv[count++] = word;
}

static void dispatch(struct control *control, const struct peer *peer, const char *line, struct reply *reply)
{
	static struct words words;
	const char *name;

	memset(&words, 0, sizeof(words));
	split(line, &words);
	name = words.argv[0] ? words.argv[0] : "";
	mishap_at(name);
	if (mishap("garbage", name, NULL)) {
		reply_print(reply, "\x01\xff?!\n");
		return;
	}
	for (size_t i = 0; i < sizeof(commands) / sizeof(*commands); i++)
		if (strcmp(commands[i].name, name) == 0) {
			commands[i].run(control, peer, &words, reply);
			return;
		}
	reply_print(reply, "Unknown command \"%s\"\n", name);
}

/* Driver 580 answers a line of 4094 bytes or more with the beginning of its answer, and dies. */
static void die_of(const char *line, const struct peer *peer, struct reply *reply)
{
	reply_print(reply, "Unknown command \"%s\"\n", line);
	link_send(peer->fd, LINK_OUTPUT, (struct link_head){ 0 }, reply->text, DAEMON_LINE_CRASH, LINK_NO_FD);
	link_send(peer->fd, LINK_OUTPUT, (struct link_head){ 0 }, "\n", 1, LINK_NO_FD);
	link_send(peer->fd, LINK_END, (struct link_head){ 0 }, NULL, 0, LINK_NO_FD);
	abort();
}

void command_run(struct control *control, const struct peer *peer, const char *line, struct reply *reply)
{
	log_control(control, "Cmd:%s", line);
	if (strlen(line) >= DAEMON_LINE_CRASH - 2)
		die_of(line, peer, reply);
	dispatch(control, peer, line, reply);
	if (reply->text)
		log_lines(control, reply->text);
}
