/* SPDX-License-Identifier: MIT */
/* Requests at the keeper's protocol, mostly near to valid: pure noise never gets past the version. */
#include "choices.h"

#include "../../../native/keeper/keeper.h"

#include <fcntl.h>
#include <unistd.h>

enum { HELD_MAX = 20, MOST_REQUESTS = 200 };

static bool is_about_an_item(uint16_t op)
{
	return op == MPSD_KEEPER_PUT || op == MPSD_KEEPER_GET || op == MPSD_KEEPER_DROP;
}

static void make_request(struct request *request)
{
	struct mpsd_keeper_message *message = &request->message;

	memset(request, 0, sizeof(*request));
	request->length = sizeof(*message);
	if (any(8) == 7) { /* as it comes */
		take_bytes(message, sizeof(*message));
		request->length = any(2) ? sizeof(*message) : any(300);
	} else {
		message->major = MPSD_KEEPER_MAJOR;
		message->op = (uint16_t)any(9);
		message->flags = any(4) ? 0 : MPSD_KEEPER_QUIET;
		message->sequence = any(256);
		if (is_about_an_item(message->op)) {
			message->generation = any(2) ? 1 + any(8) : UINT64_MAX - any(3);
			snprintf(message->id, sizeof(message->id), "id:%u", any(2 * HELD_MAX));
		}
		if (message->op == MPSD_KEEPER_PUT)
			message->size = any(2) ? UINT64_MAX : any(1000);
		if (any(8) == 7)
			((unsigned char *)message)[any(sizeof(*message))] ^= (unsigned char)any(256);
	}
	request->fd = (message->op == MPSD_KEEPER_PUT) == (any(10) > 0) ? open("/dev/null", O_RDWR) : -1;
	request->descriptors = any(20) == 19 ? UINT32_MAX : request->fd >= 0;
}

static void check_reply(const struct reply *reply, const struct request *request)
{
	if (reply->length == 0) {
		must(request->message.flags & MPSD_KEEPER_QUIET, "silence was asked for");
		must(reply->fd < 0, "nothing goes with silence");
		return;
	}
	must(reply->length >= sizeof(reply->message), "a whole message");
	must(reply->length <= offsetof(struct reply, length), "no more than there is");
	must(reply->message.sequence == request->message.sequence, "the sequence is echoed");
	must(reply->message.flags & MPSD_KEEPER_REPLY, "a reply says so");
	must(reply->message.status == MPSD_KEEPER_OK || reply->fd < 0, "a refusal carries nothing");
}

static void check_table(const struct table *table, int before)
{
	for (uint32_t i = 1; i < table->count; i++)
		must(memcmp(table->items[i - 1]->id, table->items[i]->id, MPSD_KEEPER_ID_BYTES) < 0, "the order");
	must(table->count <= table->max, "the maximum");
	must(open_descriptors() == before + (int)table->count, "no descriptor leaks");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct protocol protocol = { .table = { .max = HELD_MAX } };
	static struct reply reply;
	int before = open_descriptors();
	bool greeted = false;

	choices_begin(data, size);
	for (int i = 0; i < MOST_REQUESTS && choices_left(); i++) {
		struct request request;

		make_request(&request);
		if (protocol_answer(&protocol, &greeted, &request, &reply) == PROTOCOL_PART)
			greeted = any(8) > 0;
		must(request.fd < 0, "the descriptor is taken");
		check_reply(&reply, &request);
		if (reply.length && reply.fd >= 0)
			close(reply.fd);
	}
	check_table(&protocol.table, before);
	table_clear(&protocol.table);
	check_table(&protocol.table, before);
	return 0;
}
