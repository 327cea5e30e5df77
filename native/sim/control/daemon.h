/* The fake control daemon: its state, and what its files offer each other.
 *
 * One thread, one poll loop (loop.c).  A peer is one accepted connection; peers.c gives it a role
 * by its first message.  Servers are child processes (servers.c); shutdown.c ends them.
 */
#ifndef MPSD_SIM_DAEMON_H
#define MPSD_SIM_DAEMON_H

#include "link.h"

enum { DAEMON_SERVERS = 8, DAEMON_PEERS = 8192, DAEMON_START_TRIES = 6, DAEMON_LINE_CRASH = 4096 };

enum peer_role { PEER_NEW, PEER_GREETED, PEER_PENDING, PEER_GRANTED, PEER_UI, PEER_QUITTER, PEER_SERVER };

struct peer {
	int fd; /* -1: closed, to be forgotten */
	enum peer_role role;
	pid_t pid;
	uid_t uid;
	struct link_head attach; /* what the client asked */
};

struct mps_server {
	pid_t pid; /* 0: free */
	uid_t uid;
	int fd; /* -1 until it has connected */
	bool ready;
	bool stopping;       /* asked to end: retry until it does */
	bool forced; /* on its way out: takes no more clients */
	unsigned backoff_ms; /* of the retry before */
	uint64_t retry_ns;   /* 0: none */
	struct link_settings settings;
};

struct control {
	char pipe[108];
	char logs[256];
	bool foreground;
	bool multiuser;
	uid_t owner;
	int listener, privileged, lock, fifo, children; /* descriptors; -1: none */
	int control_log, server_log;
	struct link_settings defaults;
	struct mps_server servers[DAEMON_SERVERS];
	struct peer *peers;
	unsigned peer_count;
	unsigned failed_starts; /* in a row */
	bool start_wanted; /* by start_server, once another user's server has gone */
	uid_t start_uid;
	bool quitting;
	bool failed; /* a server has ended badly: the exit status */
	uint64_t quit_force_ns; /* 0: never */
};

/* start.c: 0 and a listening daemon, or the exit status */
int start_daemon(struct control *control);
void stop_daemon(struct control *control); /* takes the files away; does not return */

/* log.c */
void log_control(struct control *control, const char *format, ...) __attribute__((format(printf, 2, 3)));
void log_lines(struct control *control, const char *text); /* an answer, line by line */
void log_from_fifo(struct control *control);
int log_open(struct control *control);

/* loop.c */
void run_loop(struct control *control); /* until the daemon exits */

/* peers.c */
void peer_accept(struct control *control, int listener);
bool peer_is_awaited(const struct peer *peer); /* the daemon waits for this peer alone */
void peer_readable(struct control *control, struct peer *peer);
void peer_close(struct peer *peer);
void peer_serve_pending(struct control *control);
void peer_refuse_pending(struct control *control, int cuda_error);
unsigned peer_ui_count(const struct control *control);

/* servers.c */
struct mps_server *server_by_pid(struct control *control, pid_t pid);
struct mps_server *server_for(struct control *control, uid_t uid);
struct mps_server *server_any(struct control *control);
void server_start(struct control *control, uid_t uid);
bool server_adopt(struct control *control, struct peer *peer, const struct link_packet *packet);
void server_said(struct control *control, struct mps_server *server);
void server_reap(struct control *control);
int server_ask(struct control *control, struct mps_server *server, enum link_kind kind, struct link_head head,
	       struct link_packet *answer);
void server_configure(struct mps_server *server);
void server_want(struct control *control, uid_t uid); /* a server for this user, soon */

/* shutdown.c */
void shutdown_server(struct control *control, struct mps_server *server, bool force);
void shutdown_retry(struct control *control);          /* ask again the servers with an expired timer */
int shutdown_wait_ms(const struct control *control);   /* until the next of those, or -1 */
void shutdown_quit(struct control *control, long timeout_seconds); /* negative: no limit */

/* commands.c */
struct reply {
	char *text; /* malloc'ed */
	size_t length;
	bool quit;
	long quit_seconds;
};
void reply_print(struct reply *reply, const char *format, ...) __attribute__((format(printf, 2, 3)));
void command_run(struct control *control, const struct peer *peer, const char *line, struct reply *reply);

struct words {
	char *argv[8]; /* argv[0]: the command; missing ones are NULL */
	char copy[DAEMON_LINE_CRASH];
};
typedef void command_handler(struct control *, const struct peer *, struct words *, struct reply *);
command_handler command_server_status, command_start_server;
command_handler command_default_percent, command_percent, command_default_limit, command_limit, command_priority;
command_handler command_ps, command_client_list, command_device_clients, command_terminate, command_device_query;
/* May the peer change this server, or with NULL the daemon's own settings? If not, writes the refusal into the reply. */
bool command_may_change(const struct control *control, const struct peer *peer, const struct mps_server *server,
			struct reply *reply);
struct mps_server *command_server(struct control *control, const char *word, struct reply *reply);

/* mishaps.c: failures on request, MPSD_SIM_CONTROL_FAULT */
bool mishap(const char *what, const char *command, unsigned *ms);
void mishap_at(const char *command); /* hang, crash or be slow here, if asked to */
bool mishap_overlap(unsigned connected);

/* frontend.c, help.c */
int run_frontend(void);
extern const char help_text[], version_text[];

#endif
