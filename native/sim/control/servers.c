/* Server processes: starting them, hearing of them, asking them, burying them. */
#include "daemon.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ASK_MS = 10000, CUDA_MPS_CONNECTION_FAILED = 805 };

static struct link_packet packet;

struct mps_server *server_by_pid(struct control *control, pid_t pid)
{
	for (unsigned i = 0; pid > 0 && i < DAEMON_SERVERS; i++)
		if (control->servers[i].pid == pid)
			return &control->servers[i];
	return NULL;
}

struct mps_server *server_any(struct control *control)
{
	for (unsigned i = 0; i < DAEMON_SERVERS; i++)
		if (control->servers[i].pid)
			return &control->servers[i];
	return NULL;
}

struct mps_server *server_for(struct control *control, uid_t uid)
{
	uid_t wanted = control->multiuser ? control->owner : uid;

	for (unsigned i = 0; i < DAEMON_SERVERS; i++)
		if (control->servers[i].pid && control->servers[i].uid == wanted)
			return &control->servers[i];
	return NULL;
}

static void become(struct control *control, uid_t uid)
{
	struct passwd *user = getpwuid(uid);
	gid_t gid = user ? user->pw_gid : (gid_t)uid;

	if (uid == geteuid())
		return;
	if (setgroups(0, NULL) == 0 && setresgid(gid, gid, gid) == 0 && setresuid(uid, uid, uid) == 0) {
		setenv("MPSD_SIM_OF_ROOT", "1", 1); /* other processes of that user may not look into it */
		return;
	}
	log_control(control, "Failed to start server using uid %u, error: %s", (unsigned)uid, strerror(errno));
	_exit(1);
}

/* In the child. The server's program is in the directory of this one. */
static void run_server(struct control *control, uid_t uid)
{
	char path[512];
	ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 32);
	char *slash;
	sigset_t none;

	log_control(control, "Starting new server %d for user %u", (int)getpid(), (unsigned)uid);
	become(control, uid);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGPIPE, SIG_DFL);
	path[length < 0 ? 0 : length] = '\0';
	slash = strrchr(path, '/');
	if (slash)
		strcpy(slash + 1, "nvidia-cuda-mps-server");
	setenv("MPSD_SIM_DIR", machine_directory(), 1); /* the default one goes by uid */
	execl(path, "nvidia-cuda-mps-server", "", (char *)NULL);
	_exit(1);
}

void server_start(struct control *control, uid_t uid)
{
	struct mps_server *server = NULL;
	pid_t child;

	for (unsigned i = 0; i < DAEMON_SERVERS && !server; i++)
		if (!control->servers[i].pid)
			server = &control->servers[i];
	if (!server)
		return;
	machine_directory(); /* made by us, not by another uid */
	child = fork();
	if (child == 0)
		run_server(control, uid);
	if (child > 0)
		*server = (struct mps_server){ .pid = child, .uid = uid, .fd = -1, .settings = control->defaults };
}

/* One user's server at a time: another's is asked to end first. */
void server_want(struct control *control, uid_t uid)
{
	uid_t wanted = control->multiuser ? control->owner : uid;
	struct mps_server *current = server_any(control);

	if (!current)
		server_start(control, wanted);
	else if (current->uid != wanted && !current->stopping)
		shutdown_server(control, current, false);
}

/* Take the peer's descriptor if the peer is a child of this daemon. */
bool server_adopt(struct control *control, struct peer *peer, const struct link_packet *said)
{
	struct mps_server *server = server_by_pid(control, said->pid);

	if (!server || server->fd >= 0)
		return false;
	server->fd = peer->fd;
	peer->fd = -1;
	server_configure(server);
	return true;
}

void server_configure(struct mps_server *server)
{
	if (server->fd >= 0)
		link_send(server->fd, LINK_CONFIG, (struct link_head){ 0 }, &server->settings, sizeof(server->settings), LINK_NO_FD);
}

static void ready(struct control *control, struct mps_server *server)
{
	server->ready = true;
	control->failed_starts = 0;
	log_control(control, "NEW SERVER %d: Ready", (int)server->pid);
	peer_serve_pending(control);
}

void server_said(struct control *control, struct mps_server *server)
{
	int rc = link_receive(server->fd, &packet, 0);

	if (rc == 0 && packet.head.kind == LINK_READY) {
		ready(control, server);
	} else if (rc < 0 && rc != -ETIMEDOUT) {
		close(server->fd);
		server->fd = -1; /* the SIGCHLD handler does the rest */
		server->forced = true;
	}
}

/* Blocks until the server answers: the commands of a daemon with one thread wait for each other.  That may take as long as a
 * culprit lives: terminate.c of the server. */
int server_ask(struct control *control, struct mps_server *server, enum link_kind kind, struct link_head head,
	       struct link_packet *answer)
{
	int rc;

	if (server->fd < 0)
		return -ENOTCONN;
	rc = link_send(server->fd, kind, head, NULL, 0, LINK_NO_FD);
	while (rc == 0) {
		rc = link_receive(server->fd, answer, kind == LINK_TERMINATE ? -1 : ASK_MS); /* the vendor's waits without limit */
		if (rc == 0 && answer->head.kind == LINK_ANSWER)
			return 0;
		if (rc == 0 && answer->head.kind == LINK_READY)
			ready(control, server);
	}
	return rc;
}

static void buried(struct control *control, struct mps_server *server, int status)
{
	bool was_ready = server->ready;

	if (server->fd >= 0)
		close(server->fd);
	*server = (struct mps_server){ 0 };
	log_from_fifo(control);
	control->failed |= WEXITSTATUS(status) != 0; /* a killed one does not count */
	if (!was_ready && status && ++control->failed_starts >= DAEMON_START_TRIES) {
		control->failed_starts = 0;
		peer_refuse_pending(control, CUDA_MPS_CONNECTION_FAILED);
	}
	if (control->quitting)
		return;
	if (control->start_wanted && !server_any(control))
		server_start(control, control->start_uid);
	control->start_wanted = false;
	peer_serve_pending(control);
}

void server_reap(struct control *control)
{
	struct signalfd_siginfo info;
	pid_t pid;
	int status;

	while (read(control->children, &info, sizeof(info)) > 0)
		;
	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		struct mps_server *server = server_by_pid(control, pid);

		log_from_fifo(control);
		log_control(control, "Server %d exited with status %d", (int)pid, WEXITSTATUS(status)); /* 0 for a signal */
		if (server)
			buried(control, server, status);
	}
}
