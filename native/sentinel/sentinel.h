/* SPDX-License-Identifier: MIT */
/* Inside of mpsd-sentinel.  The protocol and its words: ../include/mpsd_sentinel.h.
 *
 *   main.c     the watcher: requests, reports, the order of things
 *   client.c   the CUDA client that is stopped
 *   clients.c  the table of the server's clients
 *   rm.c       RM on /dev/nvidiactl: the client's objects, the debugger session, the event
 *   trial.c    a client for the self-test
 *   holders.c  one process for each client after an exception: holds its descriptors, finds the PC in its mappings
 */
#ifndef SENTINEL_H
#define SENTINEL_H

#include "mpsd_rm.h"
#include "mpsd_sentinel.h"

#include <dirent.h>
#include <poll.h>
#include <stdbool.h>
#include <sys/types.h>

/* client.c */
struct client_context { /* what the client writes to its pipe once it has a context */
	int32_t code; /* a CUresult; 0: it has one */
	uint32_t sms;
	uint32_t is_simulated;
};

struct client {
	pid_t pid;
	int pidfd;
	int pipe; /* from which a struct client_context comes; end of file: the client ended without a context */
};

int client_start(uid_t uid, struct client *out); /* as this user; 0, or -errno.  Before any thread exists */
int client_stop(const struct client *client); /* 0, or -errno; waits until it is stopped, 5 s at most */
bool client_is_lost(const struct client *client); /* it has ended, or runs again; never waits */
void client_kill(const struct client *client);
void client_wait(const struct client *client); /* for its end, 5 s at most */

/* clients.c: never waits */
struct clients { /* of the server, each in a place */
	struct pollfd *polled; /* in each place a pidfd, or -1: it is free.  The caller has the array, and polls it */
	pid_t pids[MPSD_SENTINEL_CLIENTS];
	bool are_held[MPSD_SENTINEL_CLIENTS]; /* a holder has its descriptors */
	int looks[MPSD_SENTINEL_CLIENTS]; /* where its holder waits for the PC, or -errno; 0: no look has begun */
};

/* Takes the pidfd.  Returns its place; -1 for a client that is known and lives, for pid 0, and without a free place. */
int clients_add(struct clients *clients, pid_t pid, int pidfd);
void clients_set_held(struct clients *clients, pid_t pid);
void clients_begin_looks(struct clients *clients, bool is_simulated, int pipe); /* holder_start() */
int clients_tell_pc(struct clients *clients, int place, uint64_t pc); /* the look goes on; 0, or -errno: there is none */
bool clients_remove(struct clients *clients, int place); /* whether it was the last one */

/* rm.c: each returns 0, an NV_STATUS, or -errno */
struct rm {
	int control;          /* /dev/nvidiactl */
	uint32_t own;         /* our RM client */
	int client_control;   /* the stopped client's /dev/nvidiactl: the same open file */
	uint32_t client;      /* its RM client */
	uint32_t compute;     /* its compute object */
	uint32_t session;     /* the sentinel's */
	int event;            /* readable after an SM exception */
	uint32_t sms;
	bool is_simulated;
};

struct exception {
	uint64_t pc; /* 0: unknown */
	uint32_t warp_esr, global_esr;
	uint32_t sms; /* how many SMs report an error that they did not report before */
	bool is_shared; /* other warps were on an SM with a failed warp: they do not continue (docs/sentinel.md) */
	bool is_mmu;
};

int rm_open(struct rm *rm, bool is_simulated); /* simulated: through libcuda.so.1 of the simulator, native/sim/driver/rm.c */
int rm_find(struct rm *rm, const struct client *client);
int rm_open_session(struct rm *rm);
int rm_open_event(struct rm *rm);
void rm_clear_event(const struct rm *rm);
int rm_read(const struct rm *rm, struct exception *out); /* what is new since the last call */
int rm_resume(const struct rm *rm); /* the clients go on */

/* trial.c */
int trial_run(const char *role); /* the exit status */

/* request.c */
/* Receive a request and the descriptor that came with it, or -1.  1: it is valid, and the descriptor is the caller's; 0: none is
 * there yet; -1: the peer has gone, or it is not valid. */
int request_receive(int peer, struct mpsd_sentinel_request *request, int *fd);

/* holders.c */
uint64_t now_ns(void); /* of CLOCK_MONOTONIC */
/* Whether a number in a folder /proc/PID/fd is a device /dev/NAME..., but not /dev/BUT... (NULL: any). */
bool is_device(DIR *folder, const char *number, const char *name, const char *but, bool is_simulated);
/* Fork a process that reads the client's mappings, waits for the PC, and writes one report of kind HOLDS to `pipe`.  holds: before
 * all that it takes the client's descriptors, and afterwards it lives until the caller's process dies; else it ends.  Returns the
 * caller's descriptor, to which it writes the PC (uint64_t), or -errno. */
int holder_start(pid_t pid, int pidfd, bool is_simulated, bool holds, int pipe);
int take_descriptor(int pidfd, int number); /* a duplicate, close-on-exec, or -errno; can block if the process is hostile */

#endif
