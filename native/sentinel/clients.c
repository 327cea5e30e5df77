/* SPDX-License-Identifier: MIT */
/* The clients of the server: each has a place, until its pidfd reports its end. */
#include "sentinel.h"

#include <errno.h>
#include <unistd.h>

int clients_add(struct clients *clients, pid_t pid, int pidfd)
{
	int place = -1;

	for (int i = 0; i < MPSD_SENTINEL_CLIENTS && pid; i++)
		if (clients->polled[i].fd < 0)
			place = i;
		else if (clients->pids[i] == pid && poll(&clients->polled[i], 1, 0) == 0)
			pid = 0; /* it is known, and lives */
	if (!pid || place < 0) {
		close(pidfd);
		return -1;
	}
	clients->polled[place].fd = pidfd;
	clients->pids[place] = pid;
	clients->are_held[place] = false;
	clients->looks[place] = 0;
	return place;
}

void clients_set_held(struct clients *clients, pid_t pid)
{
	for (int i = 0; i < MPSD_SENTINEL_CLIENTS; i++)
		if (clients->polled[i].fd >= 0 && clients->pids[i] == pid)
			clients->are_held[i] = true;
}

void clients_begin_looks(struct clients *clients, bool is_simulated, int pipe)
{
	for (int i = 0; i < MPSD_SENTINEL_CLIENTS; i++)
		if (clients->polled[i].fd >= 0 && !clients->looks[i])
			clients->looks[i] = holder_start(clients->pids[i], clients->polled[i].fd, is_simulated, !clients->are_held[i], pipe);
}

int clients_tell_pc(struct clients *clients, int place, uint64_t pc)
{
	int look = clients->looks[place], rc = look < 0 ? look : write(look, &pc, sizeof(pc)) < 0 ? -errno : 0;

	if (look > 0)
		close(look);
	clients->looks[place] = 0;
	return rc;
}

bool clients_remove(struct clients *clients, int place)
{
	close(clients->polled[place].fd);
	clients->polled[place].fd = -1;
	for (int i = 0; i < MPSD_SENTINEL_CLIENTS; i++)
		if (clients->polled[i].fd >= 0)
			return false;
	return true;
}
