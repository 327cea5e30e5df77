/* The address spaces of dead clients: while a process keeps one, the work that its client left behind goes on and harms no
 * other client.
 *
 * Keeping a space longer than the driver's objects of its client (PID.control) costs the server the client's share of the SMs,
 * if the client had a share of its own. After a few such losses no context can be created: error 401 (H200, driver 580.159.04:
 * after two to seven). */
#include "server.h"
#include "uvm_space.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LOOK_AGAIN_MS = 2, MOST_LOST_SHARES = 4, FULL_PERCENT = 100 };

static void path_of(char *path, size_t size, pid_t space_pid, const char *what)
{
	snprintf(path, size, "%s/uvm/%d.%s", machine_directory(), (int)space_pid, what);
}

/* A dying client releases its own lock a little later than its connection to the server. */
bool space_is_held(pid_t space_pid)
{
	char path[300];
	bool held;
	int fd;

	path_of(path, sizeof(path), space_pid, "space");
	fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return false;
	held = flock(fd, LOCK_EX | LOCK_NB) < 0;
	close(fd);
	return held;
}

static bool has_ended(pid_t pid)
{
	int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	struct pollfd item = { .fd = pidfd, .events = POLLIN };
	bool ended = pidfd < 0 ? errno == ESRCH : poll(&item, 1, 0) > 0;

	if (pidfd >= 0)
		close(pidfd);
	return ended;
}

static bool is_wanted(const struct server *server, pid_t space_pid)
{
	for (unsigned i = 0; i < SERVER_HELD; i++)
		if (server->held[i].pid && server->held[i].space_pid == space_pid)
			return true;
	return false;
}

void space_forget(const struct server *server, pid_t space_pid)
{
	char path[300];

	if (!space_pid || is_wanted(server, space_pid) || exception_keeps(space_pid))
		return;
	path_of(path, sizeof(path), space_pid, "space");
	unlink(path);
	path_of(path, sizeof(path), space_pid, "events");
	unlink(path);
	path_of(path, sizeof(path), space_pid, "control");
	unlink(path);
	path_of(path, sizeof(path), space_pid, "sm");
	unlink(path);
}

int space_open_file(pid_t pid, const char *what)
{
	char path[300];

	path_of(path, sizeof(path), pid, what);
	return open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
}

/* The client's own pid names the files, so a client in another pid namespace has none here. */
void space_open_files(struct connection *client)
{
	bool is_watched = client->context && client->terms.percent < FULL_PERCENT;

	client->space_fd = is_watched ? space_open_file(client->pid, "space") : -1;
	client->control_fd = is_watched ? space_open_file(client->pid, "control") : -1;
}

static void close_files(int space_fd, int control_fd)
{
	if (space_fd >= 0)
		close(space_fd);
	if (control_fd >= 0)
		close(control_fd);
}

void space_see_end(struct server *server, struct connection *client)
{
	struct ending end = { .is_used = true, .space_fd = client->space_fd, .control_fd = client->control_fd };

	client->space_fd = client->control_fd = -1;
	for (unsigned i = 0; i < SERVER_ENDING && end.space_fd >= 0 && end.control_fd >= 0 && !client->bye; i++)
		if (!server->ending[i].is_used) {
			server->ending[i] = end;
			return;
		}
	close_files(end.space_fd, end.control_fd);
}

static bool is_locked(int fd)
{
	if (flock(fd, LOCK_EX | LOCK_NB) < 0)
		return true;
	(void)flock(fd, LOCK_UN);
	return false;
}

bool space_is_worn(const struct server *server)
{
	return server->lost_shares >= MOST_LOST_SHARES;
}

/* In this order: the client's process, or a careful holder, closes the space first. */
static void look_at_ends(struct server *server)
{
	for (unsigned i = 0; i < SERVER_ENDING; i++) {
		struct ending *end = &server->ending[i];

		if (!end->is_used || is_locked(end->control_fd))
			continue;
		if (is_locked(end->space_fd))
			server->lost_shares++;
		close_files(end->space_fd, end->control_fd);
		end->is_used = false;
	}
}

void space_hold(struct server *server, const struct connection *client, bool is_harmful)
{
	for (unsigned i = 0; i < SERVER_HELD; i++)
		if (!server->held[i].pid) {
			server->held[i] = (struct held){ .pid = client->pid, .space_pid = client->space_pid, .gpu = client->gpu,
							 .end_ns = client->work_end_ns, .is_harmful = is_harmful };
			leftover_take(&server->held[i], client->page, machine_now_ns());
			return;
		}
	if (is_harmful)
		fault_begin(server, client, FAULT_KILLED, "channel error"); /* no room to wait */
}

/* Work that ends while its address space exists has ended well. It changes memory only during that time, and only once the
 * client has ended, so that the lock is another's: who waits for the end of the client alone must see no change after it. */
void space_run(struct server *server, uint64_t now)
{
	look_at_ends(server);
	for (unsigned i = 0; i < SERVER_HELD; i++) {
		struct held *held = &server->held[i];
		struct connection dead = { .fd = -1, .pid = held->pid, .gpu = held->gpu };
		bool ended = now >= held->end_ns, has_gone, is_kept;

		if (!held->pid)
			continue;
		has_gone = has_ended(held->pid); /* before the look at the lock */
		is_kept = space_is_held(held->space_pid);
		if (is_kept && has_gone)
			leftover_run(held, now);
		if (is_kept && !(ended && has_gone))
			continue;
		leftover_end(server, held);
		space_forget(server, held->space_pid);
		if (!ended && held->is_harmful)
			fault_begin(server, &dead, FAULT_KILLED, "channel error");
	}
}

uint64_t space_next_ns(const struct server *server, uint64_t now)
{
	for (unsigned i = 0; i < SERVER_HELD; i++)
		if (server->held[i].pid)
			return now + LOOK_AGAIN_MS * 1000000ull;
	for (unsigned i = 0; i < SERVER_ENDING; i++)
		if (server->ending[i].is_used)
			return now + LOOK_AGAIN_MS * 1000000ull;
	return 0;
}
