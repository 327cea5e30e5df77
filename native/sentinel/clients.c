/* SPDX-License-Identifier: MIT */
/* The clients of the server: each has a place, until its pidfd reports its end. */
#include "sentinel.h"

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
	return place;
}

void clients_set_held(struct clients *clients, pid_t pid)
{
	for (int i = 0; i < MPSD_SENTINEL_CLIENTS; i++)
		if (clients->polled[i].fd >= 0 && clients->pids[i] == pid)
			clients->are_held[i] = true;
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
