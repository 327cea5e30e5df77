/* The address spaces of the dead: as long as somebody keeps one, work that its client left behind goes on and harms nobody. */
#include "server.h"
#include "uvm_space.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <unistd.h>

enum { LOOK_AGAIN_MS = 2 };

static void path_of(char *path, size_t size, pid_t space_pid, const char *what)
{
	snprintf(path, size, "%s/uvm/%d.%s", machine_directory(), (int)space_pid, what);
}

/* A client that dies lets go of its lock a little later than of us: whoever asks then, asks again. */
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

	if (!space_pid || is_wanted(server, space_pid))
		return;
	path_of(path, sizeof(path), space_pid, "space");
	unlink(path);
	path_of(path, sizeof(path), space_pid, "events");
	unlink(path);
}

void space_hold(struct server *server, const struct connection *client)
{
	for (unsigned i = 0; i < SERVER_HELD; i++)
		if (!server->held[i].pid) {
			server->held[i] = (struct held){ .pid = client->pid, .space_pid = client->space_pid, .gpu = client->gpu,
							 .end_ns = client->work_end_ns };
			leftover_take(&server->held[i], client->page, machine_now_ns());
			return;
		}
	fault_begin(server, client, FAULT_KILLED, "channel error"); /* no room to wait */
}

/* Work that ends while its address space is there has ended well.  What it does to memory it does only as long. */
void space_run(struct server *server, uint64_t now)
{
	for (unsigned i = 0; i < SERVER_HELD; i++) {
		struct held *held = &server->held[i];
		struct connection dead = { .fd = -1, .pid = held->pid, .gpu = held->gpu };
		bool ended = now >= held->end_ns, is_kept = held->pid && space_is_held(held->space_pid);

		if (is_kept)
			leftover_run(held, now);
		if (!held->pid || (!ended && is_kept))
			continue;
		leftover_end(server, held);
		space_forget(server, held->space_pid);
		if (!ended)
			fault_begin(server, &dead, FAULT_KILLED, "channel error");
	}
}

uint64_t space_next_ns(const struct server *server, uint64_t now)
{
	for (unsigned i = 0; i < SERVER_HELD; i++)
		if (server->held[i].pid)
			return now + LOOK_AGAIN_MS * 1000000ull;
	return 0;
}
