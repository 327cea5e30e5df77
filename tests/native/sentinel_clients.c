/* SPDX-License-Identifier: MIT */
/* The sentinel's table of clients.  Ends of pipes stand for pidfds: readable once the other end is closed. */
#include "../../native/sentinel/sentinel.h"

#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

static struct pollfd polled[MPSD_SENTINEL_CLIENTS];
static struct clients clients = { .polled = polled };

static int new_pidfd(int *process)
{
	int ends[2];

	assert(pipe(ends) == 0);
	*process = ends[1];
	return ends[0];
}

static bool is_open(int fd)
{
	return fcntl(fd, F_GETFD) >= 0;
}

int main(void)
{
	struct rlimit files = { 2 * MPSD_SENTINEL_CLIENTS + 64, 2 * MPSD_SENTINEL_CLIENTS + 64 };
	int process, other, again, pidfd, first, count = 0;

	assert(setrlimit(RLIMIT_NOFILE, &files) == 0);
	for (int i = 0; i < MPSD_SENTINEL_CLIENTS; i++)
		polled[i] = (struct pollfd){ .fd = -1, .events = POLLIN };

	first = clients_add(&clients, 7, pidfd = new_pidfd(&process));
	assert(first >= 0 && polled[first].fd == pidfd && clients.pids[first] == 7 && !clients.are_held[first]);
	clients_set_held(&clients, 8);
	assert(!clients.are_held[first]);
	clients_set_held(&clients, 7);
	assert(clients.are_held[first]);
	puts("a client has a place");

	assert(clients_add(&clients, 7, pidfd = new_pidfd(&other)) < 0 && !is_open(pidfd));
	assert(clients_add(&clients, 0, pidfd = new_pidfd(&other)) < 0 && !is_open(pidfd));
	puts("one that is known, or has no pid here, gets none");

	close(process);
	again = clients_add(&clients, 7, new_pidfd(&process));
	assert(again >= 0 && again != first && !clients.are_held[again]);
	assert(!clients_remove(&clients, first) && polled[first].fd < 0);
	assert(clients_remove(&clients, again));
	puts("a later process with the pid of one that has ended gets a place");

	while (clients_add(&clients, 100 + count, pidfd = dup(STDIN_FILENO)) >= 0)
		count++;
	assert(count == MPSD_SENTINEL_CLIENTS && !is_open(pidfd));
	assert(!clients_remove(&clients, 3) && clients_add(&clients, 99, dup(STDIN_FILENO)) == 3);
	puts("there are as many places as are documented");
	return 0;
}
