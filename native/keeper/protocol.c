/* SPDX-License-Identifier: MIT */
/* Protocol: apply each request to the table and make its reply. ../include/mpsd_keeper.h is the specification. This file does
 * not use sockets; descriptors are numbers that it owns or gives. */
#include "keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Fields that each op may carry; all others must be zero. */
enum {
	TAKES_ID = 1,
	MAY_TAKE_ID = 2,
	TAKES_GENERATION = 4,
	TAKES_NOTES = 8,
	TAKES_FD = 16,
	MAY_BE_QUIET = 32,
};

static const unsigned int takes[] = {
	[MPSD_KEEPER_HELLO] = 0,
	[MPSD_KEEPER_PUT] = TAKES_ID | TAKES_GENERATION | TAKES_NOTES | TAKES_FD | MAY_BE_QUIET,
	[MPSD_KEEPER_GET] = TAKES_ID | TAKES_GENERATION,
	[MPSD_KEEPER_DROP] = TAKES_ID | TAKES_GENERATION | MAY_BE_QUIET,
	[MPSD_KEEPER_LIST] = MAY_TAKE_ID,
	[MPSD_KEEPER_STAT] = 0,
	[MPSD_KEEPER_STOP] = MAY_BE_QUIET,
};

#define OPS (sizeof(takes) / sizeof(takes[0]))

static bool is_zero(const char *bytes, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (bytes[i])
			return false;
	return true;
}

static bool is_id(const char *id)
{
	size_t length = 0;

	while (length < MPSD_KEEPER_ID_BYTES && id[length]) {
		char c = id[length++];

		if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || (c && strchr("._:-", c))))
			return false;
	}
	return length > 0 && is_zero(id + length, MPSD_KEEPER_ID_BYTES - length);
}

/* The version and the op are known by now. */
static uint32_t check_fields(const struct mpsd_keeper_message *message, uint32_t descriptors)
{
	unsigned int may = takes[message->op];
	bool has_id = !is_zero(message->id, sizeof(message->id));

	if (message->flags & ~(may & MAY_BE_QUIET ? MPSD_KEEPER_QUIET : 0) || message->status ||
	    message->count || message->reserved[0] || message->reserved[1])
		return MPSD_KEEPER_BAD_FIELD;
	if ((has_id && !(may & (TAKES_ID | MAY_TAKE_ID))) ||
	    (message->generation && !(may & TAKES_GENERATION)) ||
	    ((message->size || message->item_flags) && !(may & TAKES_NOTES)))
		return MPSD_KEEPER_BAD_FIELD;
	if ((has_id || may & TAKES_ID) && !is_id(message->id))
		return MPSD_KEEPER_BAD_ID;
	if (descriptors != (may & TAKES_FD ? 1 : 0))
		return MPSD_KEEPER_BAD_DESCRIPTORS;
	return MPSD_KEEPER_OK;
}

/* Also for a request that is too short: its missing part is zero. */
static uint32_t check(const struct request *request, bool greeted)
{
	const struct mpsd_keeper_message *message = &request->message;

	if (request->length != sizeof(*message))
		return MPSD_KEEPER_BAD_SIZE;
	if (message->major != MPSD_KEEPER_MAJOR)
		return MPSD_KEEPER_BAD_VERSION;
	if (greeted == (message->op == MPSD_KEEPER_HELLO))
		return MPSD_KEEPER_NOT_GREETED;
	if (message->op == 0 || message->op >= OPS)
		return MPSD_KEEPER_BAD_OP;
	return check_fields(message, request->descriptors);
}

static void describe(const struct item *item, struct reply *reply)
{
	memcpy(reply->message.id, item->id, sizeof(item->id));
	reply->message.generation = item->generation;
	reply->message.size = item->size;
	reply->message.item_flags = item->flags;
}

/* Takes request->fd when it succeeds. */
static uint32_t put(struct protocol *protocol, struct request *request, struct reply *reply)
{
	const struct mpsd_keeper_message *message = &request->message;
	const struct item *held = table_find(&protocol->table, message->id);
	struct item item = {
		.generation = message->generation,
		.size = message->size,
		.flags = message->item_flags,
		.fd = request->fd,
	};
	int rc;

	memcpy(item.id, message->id, sizeof(item.id));
	if (message->generation == 0)
		return MPSD_KEEPER_BAD_GENERATION;
	if (held && message->generation <= held->generation)
		return MPSD_KEEPER_STALE;
	rc = table_put(&protocol->table, &item);
	if (rc)
		return rc == -ENOSPC ? MPSD_KEEPER_FULL : MPSD_KEEPER_NO_ROOM;
	request->fd = -1;
	describe(&item, reply);
	protocol->stat.puts++;
	return MPSD_KEEPER_OK;
}

/* *held: what the request names.  OK, NOT_FOUND, STALE. */
static uint32_t find(struct protocol *protocol, const struct mpsd_keeper_message *message, struct item **held)
{
	*held = table_find(&protocol->table, message->id);
	if (!*held)
		return MPSD_KEEPER_NOT_FOUND;
	if (message->generation && message->generation != (*held)->generation)
		return MPSD_KEEPER_STALE;
	return MPSD_KEEPER_OK;
}

static uint32_t get(struct protocol *protocol, struct request *request, struct reply *reply)
{
	struct item *held;
	uint32_t status = find(protocol, &request->message, &held);

	if (status != MPSD_KEEPER_OK)
		return status;
	/* A copy: the item may be dropped while the reply waits. */
	reply->fd = fcntl(held->fd, F_DUPFD_CLOEXEC, 0);
	if (reply->fd < 0)
		return MPSD_KEEPER_NO_ROOM;
	describe(held, reply);
	protocol->stat.gets++;
	return MPSD_KEEPER_OK;
}

static uint32_t drop(struct protocol *protocol, struct request *request, struct reply *reply)
{
	struct item *held;
	uint32_t status = find(protocol, &request->message, &held);

	if (status != MPSD_KEEPER_OK)
		return status;
	describe(held, reply);
	table_drop(&protocol->table, held);
	protocol->stat.drops++;
	return MPSD_KEEPER_OK;
}

static uint32_t list(struct protocol *protocol, struct request *request, struct reply *reply)
{
	const struct table *table = &protocol->table;
	uint32_t place = table_after(table, request->message.id), count = 0;

	for (; place < table->count && count < MPSD_KEEPER_PAGE; place++, count++) {
		const struct item *item = table->items[place];
		struct mpsd_keeper_entry *entry = &reply->payload.entries[count];

		*entry = (struct mpsd_keeper_entry){
			.generation = item->generation,
			.size = item->size,
			.item_flags = item->flags,
		};
		memcpy(entry->id, item->id, sizeof(entry->id));
	}
	if (place < table->count)
		reply->message.flags |= MPSD_KEEPER_MORE;
	reply->message.count = count;
	reply->length += count * sizeof(struct mpsd_keeper_entry);
	return MPSD_KEEPER_OK;
}

static uint32_t stat_now(struct protocol *protocol, struct request *request, struct reply *reply)
{
	struct mpsd_keeper_stat *stat = &reply->payload.stat;

	(void)request;
	*stat = protocol->stat;
	stat->held = protocol->table.count;
	stat->held_max = protocol->table.max;
	for (uint32_t i = 0; i < protocol->table.count; i++)
		if (__builtin_add_overflow(stat->size_sum, protocol->table.items[i]->size, &stat->size_sum))
			stat->size_sum = UINT64_MAX;
	reply->length += sizeof(*stat);
	return MPSD_KEEPER_OK;
}

static uint32_t hello(struct protocol *protocol, struct request *request, struct reply *reply)
{
	(void)request;
	reply->message.count = protocol->table.count;
	return MPSD_KEEPER_OK;
}

static uint32_t stop(struct protocol *protocol, struct request *request, struct reply *reply)
{
	(void)protocol;
	(void)request;
	(void)reply;
	return MPSD_KEEPER_OK; /* the caller stops */
}

static uint32_t (*const handlers[OPS])(struct protocol *, struct request *, struct reply *) = {
	[MPSD_KEEPER_HELLO] = hello, [MPSD_KEEPER_PUT] = put,       [MPSD_KEEPER_GET] = get,
	[MPSD_KEEPER_DROP] = drop,   [MPSD_KEEPER_LIST] = list,     [MPSD_KEEPER_STAT] = stat_now,
	[MPSD_KEEPER_STOP] = stop,
};

/* Fills *reply with a bare answer to `request`. */
void protocol_refuse(const struct request *request, uint32_t status, struct reply *reply)
{
	reply->message = (struct mpsd_keeper_message){
		.major = MPSD_KEEPER_MAJOR,
		.minor = MPSD_KEEPER_MINOR,
		.op = request->message.op,
		.flags = MPSD_KEEPER_REPLY,
		.sequence = request->message.sequence,
		.status = status,
	};
	reply->length = sizeof(reply->message);
	reply->fd = -1;
}

static enum protocol_next what_follows(uint32_t status, uint16_t op)
{
	if (status == MPSD_KEEPER_BAD_VERSION || status == MPSD_KEEPER_NOT_GREETED)
		return PROTOCOL_PART;
	return status == MPSD_KEEPER_OK && op == MPSD_KEEPER_STOP ? PROTOCOL_STOP : PROTOCOL_GO_ON;
}

/* Carries out *request, takes its descriptor, and fills *reply, which then owns the one in it. */
enum protocol_next protocol_answer(struct protocol *protocol, bool *greeted, struct request *request,
				   struct reply *reply)
{
	const struct mpsd_keeper_message *message = &request->message;
	uint32_t status = check(request, *greeted);

	protocol_refuse(request, status, reply);
	if (status == MPSD_KEEPER_OK) {
		status = handlers[message->op](protocol, request, reply);
		if (status == MPSD_KEEPER_OK)
			reply->message.status = status;
		else
			protocol_refuse(request, status, reply);
	}
	if (request->fd >= 0)
		close(request->fd);
	request->fd = -1;
	if (status == MPSD_KEEPER_OK) {
		*greeted = true;
		if (message->flags & MPSD_KEEPER_QUIET)
			reply->length = 0;
	} else {
		protocol->stat.refusals++;
	}
	return what_follows(status, message->op);
}
