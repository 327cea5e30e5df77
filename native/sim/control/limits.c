/* Commands about shares, memory limits and priority, with driver 580's way of reading numbers. */
#include "daemon.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_DEVICES = 32 };

static bool is_set(const struct words *words)
{
	return words->argv[0][0] == 's';
}

/* Parse with strtod, as the vendor does, so "50x" is 50; a value out of range changes nothing. */
static void change_percent(struct control *control, double *percent, const char *word)
{
	double value = word ? strtod(word, NULL) : 0.0;

	if (value > 0.0 && value <= 100.0)
		*percent = value;
	else
		log_control(control, "Invalid percentage, expected between (0.0, 100.0]");
}

void command_default_percent(struct control *control, const struct peer *peer, struct words *words, struct reply *reply)
{
	if (is_set(words) && !command_may_change(control, peer, NULL, reply))
		return;
	if (is_set(words))
		change_percent(control, &control->defaults.percent, words->argv[1]);
	reply_print(reply, "%.1f\n", control->defaults.percent);
}

void command_percent(struct control *control, const struct peer *peer, struct words *words, struct reply *reply)
{
	struct mps_server *server = command_server(control, words->argv[1], reply);

	if (!server || (is_set(words) && !command_may_change(control, peer, server, reply)))
		return;
	if (is_set(words)) {
		change_percent(control, &server->settings.percent, words->argv[2]);
		server_configure(server);
	}
	reply_print(reply, "%.1f\n", server->settings.percent);
}

/* An integer, then G or M; any other letter is M.  "1.5G" is 1 with a '.', so 1M. */
static uint64_t parse_limit(const char *word)
{
	char *end;
	uint64_t value = (uint64_t)strtoll(word, &end, 10);

	return *end == 'G' || *end == 'g' ? value << 30 : value << 20;
}

/* The first that begins with what was given: "0" finds "00", a part of a UUID the whole. */
static struct link_limit *find_limit(struct link_settings *settings, const char *device)
{
	for (unsigned i = 0; i < settings->limit_count; i++)
		if (strncmp(settings->limits[i].device, device, strlen(device)) == 0)
			return &settings->limits[i];
	return NULL;
}

static void remove_limit(struct link_settings *settings, struct link_limit *limit)
{
	size_t behind = (size_t)(settings->limits + settings->limit_count - limit) - 1;

	memmove(limit, limit + 1, behind * sizeof(*limit));
	settings->limit_count--;
}

/* Zero takes it away; a new one comes first. */
static void set_limit(struct link_settings *settings, const char *device, uint64_t bytes)
{
	struct link_limit *limit = find_limit(settings, device);
	struct link_limit fresh = { .bytes = bytes };

	strncpy(fresh.device, device, MACHINE_UUID - 1); /* before the list moves: the name may be from it */
	if (limit && !bytes) {
		remove_limit(settings, limit);
		return;
	}
	if (!bytes || (!limit && settings->limit_count == MACHINE_GPUS))
		return;
	if (!limit) {
		limit = settings->limits;
		memmove(limit + 1, limit, settings->limit_count++ * sizeof(*limit));
	}
	*limit = fresh;
}

/* A UUID must be there; of an ordinal only the size is looked at. */
static bool is_device(const char *device)
{
	struct machine_view all = machine_all();

	if (strncmp(device, "GPU-", 4) == 0)
		return machine_find_gpu(&all, device) >= 0;
	return atoi(device) < MOST_DEVICES;
}

/* Print whole gibibytes if the limit has one: 1025M is shown as 1G. Zero means no limit. */
static bool print_limit(struct link_settings *settings, const char *device, struct reply *reply)
{
	struct link_limit *limit = find_limit(settings, device);

	if (!limit)
		return false;
	if (limit->bytes >> 30)
		reply_print(reply, "%lluG\n", (unsigned long long)(limit->bytes >> 30));
	else
		reply_print(reply, "%lluM\n", (unsigned long long)(limit->bytes >> 20));
	return true;
}

void command_default_limit(struct control *control, const struct peer *peer, struct words *words, struct reply *reply)
{
	const char *device = words->argv[1], *value = words->argv[2];

	if (!device || (is_set(words) && !value)) {
		log_control(control, "Invalid command format.");
		return;
	}
	if (is_set(words)) {
		if (!command_may_change(control, peer, NULL, reply))
			return;
		if (is_device(device))
			set_limit(&control->defaults, device, parse_limit(value));
		log_control(control, "%s %s %s.", words->argv[0], device, value);
	} else if (!print_limit(&control->defaults, device, reply)) {
		log_control(control, "No default pinned memory limit set for the device!");
	}
}

/* A server knows its devices: a limit set by UUID is found by ordinal and the other way round. */
static const char *same_device(struct link_settings *settings, const char *device)
{
	struct machine_view all = machine_all();
	int index = machine_find_gpu(&all, device);

	if (find_limit(settings, device))
		return device;
	for (unsigned i = 0; index >= 0 && i < settings->limit_count; i++)
		if (machine_find_gpu(&all, settings->limits[i].device) == index)
			return settings->limits[i].device;
	return device;
}

void command_limit(struct control *control, const struct peer *peer, struct words *words, struct reply *reply)
{
	struct mps_server *server = command_server(control, words->argv[1], reply);
	const char *device = words->argv[2], *value = words->argv[3];

	if (!server || (is_set(words) && !command_may_change(control, peer, server, reply)))
		return;
	if (!device || (is_set(words) && !value)) {
		log_control(control, "Invalid command format.");
		return;
	}
	device = same_device(&server->settings, device);
	if (!is_set(words)) {
		print_limit(&server->settings, device, reply);
		return;
	}
	set_limit(&server->settings, device, parse_limit(value));
	server_configure(server);
}

void command_priority(struct control *control, const struct peer *peer, struct words *words, struct reply *reply)
{
	int value;

	if (!is_set(words)) {
		reply_print(reply, "%d\n", control->defaults.priority);
		return;
	}
	if (!command_may_change(control, peer, NULL, reply))
		return;
	value = words->argv[1] ? atoi(words->argv[1]) : 0;
	if (value < 0 || value > 1)
		reply_print(reply, "Invalid priority value - must be 0 or 1!\n");
	else
		control->defaults.priority = value;
}
