/* SPDX-License-Identifier: MIT */
/* Any bytes as a request to the inspector, and as the environment of the process that it reads. */
#include "choices.h"

#define main inspector_main
#include "../../../native/inspector/main.c"
#undef main
#include "../../../native/inspector/facts.c"
#include "../../../native/inspector/cgroups.c"
#include "../../../native/inspector/identity.c"
#include "../../../native/inspector/starter.c"
#include "../../../native/inspector/texts.c"

int descriptors_compare(const struct question *question, struct reply *out)
{
	(void)question;
	(void)out;
	return 0;
}

int descriptors_take(const struct question *question, struct reply *out)
{
	(void)question;
	(void)out;
	return 0;
}

int descriptors_find(const struct question *question, struct reply *out)
{
	(void)question;
	(void)out;
	return 0;
}

/* Near to a request: with noise alone few would pass. */
static size_t make_request(char *datagram, size_t room)
{
	struct mpsd_inspector_request head = {
		.version = MPSD_INSPECTOR_VERSION,
		.op = any(MPSD_INSPECTOR_OPS + 2),
		.deadline_ms = any(3) * 1000,
		.pairs = any(3),
		.reserved = any(16) == 15,
	};
	size_t size = any(200);

	take_bytes(datagram + sizeof(head), room - sizeof(head) < size ? room - sizeof(head) : size);
	memcpy(datagram, &head, sizeof(head));
	return any(16) == 15 ? any((uint32_t)room) : sizeof(head) + size;
}

/* The rest as the children that the kernel lists. */
static void parse_numbers(void)
{
	static struct reply reply;
	size_t bytes = choices_left();
	char *text = malloc(bytes + 1);

	take_bytes(text, bytes);
	text[bytes] = '\0';
	reply.size = 0;
	must(append_numbers(&reply, text) == 0, "a small text fits");
	must(reply.size <= (bytes + 1) / 2 * sizeof(int32_t), "a number has a digit and a space");
	free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct reply reply;
	struct question question = { .passed = { -1, -1, -1, -1 } };
	char *datagram = malloc(400), *environment;
	size_t count, bytes;

	choices_begin(data, size);
	memset(datagram, 0, 400);
	count = make_request(datagram, 400);
	datagram = realloc(datagram, count ? count : 1); /* of that size exactly */
	if (any(2)) {
		parse_numbers();
	} else if (question_parse(datagram, count, &question)) {
		bytes = choices_left();
		environment = malloc(bytes ? bytes : 1);
		take_bytes(environment, bytes);
		reply.size = 0;
		must(append_entries(&question, environment, bytes, &reply) == 0, "a small environment fits");
		must(reply.size <= bytes + 1, "no more than there is");
		free(environment);
	}
	free(datagram);
	return 0;
}
