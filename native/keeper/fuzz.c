/* SPDX-License-Identifier: MIT */
/* Fuzz: random requests at protocol_answer(), under sanitizers, with a check of what must always hold.
 * Usage: fuzz_keeper SECONDS [SEED].  Prints the seed first, so that a failure can be repeated. */
#include "keeper.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define HELD_MAX 50
#define CHECK_EVERY 1000

static uint64_t state;

static uint32_t any(uint32_t below)
{
	state ^= state << 13; /* xorshift64 */
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)(state >> 32) % below;
}

static void fill_random(void *bytes, size_t count)
{
	for (size_t i = 0; i < count; i++)
		((unsigned char *)bytes)[i] = (unsigned char)any(256);
}

static int open_descriptors(void)
{
	DIR *directory = opendir("/proc/self/fd");
	int count = -3; /* "." and "..", and the directory itself */

	while (readdir(directory))
		count++;
	closedir(directory);
	return count;
}

static void must(bool holds, const char *what)
{
	if (holds)
		return;
	fprintf(stderr, "broken: %s\n", what);
	abort();
}

static bool is_about_an_item(uint16_t op)
{
	return op == MPSD_KEEPER_PUT || op == MPSD_KEEPER_GET || op == MPSD_KEEPER_DROP;
}

/* Mostly near to valid: pure noise never gets past the version. */
static void make_request(struct request *request)
{
	static const uint16_t ops[] = {
		MPSD_KEEPER_PUT,  MPSD_KEEPER_PUT,  MPSD_KEEPER_GET,  MPSD_KEEPER_DROP, MPSD_KEEPER_DROP,
		MPSD_KEEPER_LIST, MPSD_KEEPER_STAT, MPSD_KEEPER_STOP, MPSD_KEEPER_HELLO,
	};
	struct mpsd_keeper_message *message = &request->message;

	memset(request, 0, sizeof(*request));
	message->major = any(50) ? MPSD_KEEPER_MAJOR : (uint16_t)any(65536);
	message->op = any(20) ? ops[any(sizeof(ops) / sizeof(ops[0]))] : (uint16_t)any(65536);
	message->flags = any(4) ? 0 : (uint16_t)(any(4) ? MPSD_KEEPER_QUIET : any(65536));
	message->sequence = any(UINT32_MAX);
	if (is_about_an_item(message->op) && any(2))
		message->generation = any(8) ? 1 + any(8) : UINT64_MAX - any(3);
	if (message->op == MPSD_KEEPER_PUT || !any(10))
		message->size = any(2) ? UINT64_MAX : any(1000);
	if (is_about_an_item(message->op) || !any(4))
		snprintf(message->id, sizeof(message->id), "id:%u", any(2 * HELD_MAX));
	if (!any(20))
		fill_random(message->id, 1 + any(sizeof(message->id)));
	if (!any(10))
		((unsigned char *)message)[any(sizeof(*message))] ^= (unsigned char)(1 + any(255));
	request->length = any(20) ? sizeof(*message) : any(300);
	request->fd = (message->op == MPSD_KEEPER_PUT) == (any(10) > 0) ? open("/dev/null", O_RDWR) : -1;
	request->descriptors = request->fd < 0 ? 0 : 1;
	if (!any(20))
		request->descriptors = UINT32_MAX;
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

int main(int argc, char **argv)
{
	static struct protocol protocol;
	static struct reply reply;
	time_t end = time(NULL) + (argc > 1 ? atoi(argv[1]) : 10);
	int before = open_descriptors();
	bool greeted = false;
	uint64_t requests = 0;

	state = argc > 2 ? strtoull(argv[2], NULL, 0) : (uint64_t)time(NULL) * 2654435761U + 1;
	printf("seed %llu\n", (unsigned long long)state);
	fflush(stdout);
	protocol.table.max = HELD_MAX;
	while (requests % CHECK_EVERY || time(NULL) < end) {
		struct request request;

		make_request(&request);
		if (protocol_answer(&protocol, &greeted, &request, &reply) == PROTOCOL_PART)
			greeted = any(8);
		must(request.fd < 0, "the descriptor is taken");
		check_reply(&reply, &request);
		if (reply.length && reply.fd >= 0)
			close(reply.fd);
		if (++requests % CHECK_EVERY == 0)
			check_table(&protocol.table, before);
	}
	table_clear(&protocol.table);
	check_table(&protocol.table, before);
	printf("%llu requests, %llu puts, %llu drops, %llu refusals: nothing broke\n", (unsigned long long)requests,
	       (unsigned long long)protocol.stat.puts, (unsigned long long)protocol.stat.drops,
	       (unsigned long long)protocol.stat.refusals);
	return 0;
}
