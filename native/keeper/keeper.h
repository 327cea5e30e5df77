/* SPDX-License-Identifier: MIT */
/* Declarations shared by the keeper's files. One thread, no locks; only the table allocates memory. */
#ifndef KEEPER_H
#define KEEPER_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../include/mpsd_keeper.h"

#ifndef MPSD_KEEPER_PATIENCE_MS
#define MPSD_KEEPER_PATIENCE_MS 5000 /* for HELLO, and for a peer to read; tests build with less */
#endif

/* ---- table.c: what is held, in the order of the ids ---- */

struct item {
	char id[MPSD_KEEPER_ID_BYTES];
	uint64_t generation;
	uint64_t size;
	uint64_t flags;
	int fd;
};

struct table {
	struct item **items; /* ascending by id */
	uint32_t count;
	uint32_t room;       /* of `items` */
	uint32_t max;
};

struct item *table_find(const struct table *table, const char *id);
uint32_t table_after(const struct table *table, const char *id);
int table_put(struct table *table, const struct item *item);
void table_drop(struct table *table, struct item *item);
void table_clear(struct table *table);

/* ---- protocol.c: a request and a table become a reply; no sockets ---- */

struct request {
	struct mpsd_keeper_message message;
	size_t length;         /* of the datagram; the struct holds its beginning */
	int fd;                /* the first descriptor that came with it; -1: none */
	uint32_t descriptors;  /* how many came, if the kernel reports it */
};

struct reply {
	struct mpsd_keeper_message message; /* the payload follows it without a gap */
	union {
		struct mpsd_keeper_entry entries[MPSD_KEEPER_PAGE];
		struct mpsd_keeper_stat stat;
	} payload;
	size_t length; /* to send; 0: nothing */
	int fd;        /* to send and then to close; -1: none */
};

enum protocol_next { PROTOCOL_GO_ON, PROTOCOL_PART, PROTOCOL_STOP };

struct protocol {
	struct table table;
	struct mpsd_keeper_stat stat; /* counters; the rest is filled in when asked for */
};

enum protocol_next protocol_answer(struct protocol *protocol, bool *greeted, struct request *request,
				   struct reply *reply);
void protocol_refuse(const struct request *request, uint32_t status, struct reply *reply);

/* ---- peers.c: the connections ---- */

struct peer {
	int fd;             /* -1: a free place */
	bool greeted;
	bool deaf;          /* it is gone: what it sent is carried out, nothing is answered */
	bool waiting;       /* `reply` waits until it reads */
	int64_t until_ms;   /* patience ends; for those not greeted or waiting */
	struct reply reply;
};

struct peers {
	struct peer places[MPSD_KEEPER_PEERS];
	int listener;
	int64_t accept_after_ms; /* the kernel could not accept: not before this */
	bool stop;               /* STOP came */
};

/* The descriptors that poll() watches: one for each peer, then the listener. */
enum { PEERS_EVENTS = MPSD_KEEPER_PEERS + 1 };

void peers_init(struct peers *peers, int listener);
int peers_watch(const struct peers *peers, struct pollfd *events);
void peers_serve(struct peers *peers, struct protocol *protocol, const struct pollfd *events);

int64_t keeper_now_ms(void);

#endif
