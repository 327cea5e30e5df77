/* The environment, read once. A value that is not understood is ignored and logged to MPSD_LOG: the shim refuses nothing, but, with
 * MPSD_REQUIRED, to go on without a limit that it does not understand (lease.c). */
#include "shim.h"

#include <ctype.h>

enum { LEAST_BYTES = 1 << 20, MOST_WAIT_SECONDS = 3600 };

static struct settings now;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static bool is_on(const char *name)
{
	const char *text = secure_getenv(name);

	return text && *text && strcmp(text, "0") != 0 && strcmp(text, "off") != 0;
}

static void not_understood(const char *name)
{
	if (strncmp(name, "MPSD_LEASE_", strlen("MPSD_LEASE_")) == 0)
		now.misread = name;
}

static void read_text(const char *name, char *out, size_t room)
{
	const char *text = secure_getenv(name);

	if (!text)
		return;
	if (strlen(text) < room) {
		strcpy(out, text);
		return;
	}
	shim_log("%s has more than %zu characters: it is not used", name, room - 1);
	not_understood(name);
}

/* "2M", "8G", "4096", "1.5G". */
static uint64_t read_bytes(const char *name, double least, uint64_t otherwise)
{
	static const char units[] = "KMGT";
	const char *text = secure_getenv(name), *unit;
	double number;
	char *end;

	if (!text || !*text)
		return otherwise;
	number = strtod(text, &end);
	unit = *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
	if (unit) {
		number *= (double)(1ull << (10 * (unit - units + 1)));
		end++;
		if (*end == 'i' || *end == 'I')
			end++;
		if (*end == 'B' || *end == 'b')
			end++;
	}
	if (end == text || *end || !(number >= least && number < 9e18)) {
		shim_log("%s=%s is no size: it is not used", name, text);
		not_understood(name);
		return otherwise;
	}
	return (uint64_t)number;
}

static double read_number(const char *name, double least, double most, double otherwise)
{
	const char *text = secure_getenv(name);
	double number;
	char *end;

	if (!text || !*text)
		return otherwise;
	number = strtod(text, &end);
	if (end == text || *end || !(number >= least && number <= most)) {
		shim_log("%s=%s is no number from %g to %g: it is not used", name, text, least, most);
		not_understood(name);
		return otherwise;
	}
	return number;
}

static enum shield read_shield(void)
{
	const char *text = secure_getenv("MPSD_SHIELD");

	if (!text || !*text || strcmp(text, "off") == 0)
		return SHIELD_OFF;
	if (strcmp(text, "absorb") == 0)
		return SHIELD_ABSORB;
	if (strcmp(text, "report") == 0)
		return SHIELD_REPORT;
	shim_log("MPSD_SHIELD=%s is none of off, absorb, report: there is no shield", text);
	return SHIELD_OFF;
}

static void read_all(void)
{
	now.is_required = is_on("MPSD_REQUIRED");
	read_text("MPSD_LEASE_NAME", now.lease_name, sizeof(now.lease_name));
	now.lease_sm_percent = read_number("MPSD_LEASE_SM_PERCENT", 0.001, 100, 0);
	now.lease_memory_bytes = read_bytes("MPSD_LEASE_MEMORY", 1, 0);
	now.lease_wait_seconds = read_number("MPSD_LEASE_WAIT", 0, MOST_WAIT_SECONDS, 0);
	read_text("MPSD_LEASE_DOMAIN", now.lease_domain, sizeof(now.lease_domain));
	now.wants_lease = now.lease_name[0] || now.lease_sm_percent > 0 || now.lease_memory_bytes || now.lease_domain[0];
	read_text("MPSD_ARENA", now.arena, sizeof(now.arena));
	now.arena_capacity_bytes = read_bytes("MPSD_ARENA_CAPACITY", 0, 0);
	now.least_bytes = read_bytes("MPSD_ARENA_MIN", 0, LEAST_BYTES);
	now.most_bytes = read_bytes("MPSD_ARENA_MAX", 0, UINT64_MAX);
	now.adopts = is_on("MPSD_ARENA_ADOPT");
	now.shield = read_shield();
	now.band_bytes = read_bytes("MPSD_SHIELD_BAND", 0, MPSD_GRANULE);
	now.band_bytes = (now.band_bytes + MPSD_GRANULE - 1) / MPSD_GRANULE * MPSD_GRANULE;
	if (!now.band_bytes || now.band_bytes > (1ull << 40))
		now.band_bytes = MPSD_GRANULE;
}

const struct settings *settings(void)
{
	pthread_once(&once, read_all);
	return &now;
}
