/* The lease that MPSD_LEASE_... asks for: for this process, before CUDA begins.  It ends with the process, by itself.
 *
 *   mpsd relays (root)     it finds the lease when CUDA connects, and applies it
 *   mpsd without root      it has no leases then: `control` in its directory is a link to a domain's own socket
 *                          (docs/unprivileged.md).  The requested limits are put into the documented environment variables, and the
 *                          process stays with the domain that it began with */
#include "shim.h"

#include <libgen.h>

#define POLL_SECONDS 0.05
#define REFUSAL_SECONDS 2.0 /* beyond MPSD_LEASE_WAIT: mpsd refuses in time */

struct grant {
	uint64_t id;
	bool is_active;
	double sm_percent;
};

static bool is_pointed(char *domain, size_t room)
{
	char path[4096], target[4096];
	ssize_t length;

	snprintf(path, sizeof(path), "%s/control", session_directory());
	length = readlink(path, target, sizeof(target) - 1);
	if (length <= 0)
		return false;
	target[length] = 0;
	snprintf(domain, room, "%s", dirname(target));
	return true;
}

/* The GPUs of CUDA_VISIBLE_DEVICES; 0: all, or it has a form that mpsd would not understand. */
static unsigned visible(char names[64][81])
{
	const char *list = secure_getenv("CUDA_VISIBLE_DEVICES");
	unsigned count = 0;

	while (list && *list) {
		size_t length = strcspn(list, ",");
		bool is_known = strspn(list, "0123456789") == length || strncmp(list, "GPU-", 4) == 0;

		if (!length || length > 80 || !is_known || count == 64)
			return 0;
		memcpy(names[count], list, length);
		names[count++][length] = 0;
		list += length + (list[length] == ',');
	}
	return count;
}

/* The names of all GPUs, for a memory limit, which is set for each; 0: one of them is not known, and would have no limit. */
static unsigned all_devices(struct mpsd_session *session, char names[64][81])
{
	struct mpsd_answer answer;
	struct mpsd_unpack items, uuid;
	uint32_t entries;
	unsigned count = 0;
	const char *text;
	size_t bytes;

	if (mpsd_call(session, "device.list", NULL, 0, NULL, 0, 1, 0, &answer) < 0)
		return 0;
	if (mpsd_unpack_find(&answer.result, "items", &items) == 0 && mpsd_unpack_array(&items, &entries) == 0)
		for (; count < entries; count++) {
			if (count == 64 || mpsd_unpack_find(&items, "uuid", &uuid) < 0 || mpsd_unpack_text(&uuid, &text, &bytes) < 0 ||
			    bytes > 80 || mpsd_unpack_skip(&items) < 0) {
				count = 0;
				break;
			}
			memcpy(names[count], text, bytes);
			names[count][bytes] = 0;
		}
	mpsd_answer_clear(&answer);
	return count;
}

static void pack_key(struct mpsd_pack *pack, const char *key, const char *text)
{
	mpsd_pack_text(pack, key);
	mpsd_pack_text(pack, text);
}

/* 0; -ENODEV: the memory limit has no GPU to be set for. */
static int pack_lease(struct mpsd_pack *pack, struct mpsd_session *session, const struct settings *wish)
{
	char names[64][81], all[64][81];
	unsigned count = visible(names), limited = 0;

	if (wish->lease_memory_bytes)
		limited = count ? count : all_devices(session, all);
	if (wish->lease_memory_bytes && !limited)
		return -ENODEV;
	mpsd_pack_map(pack, 4 + (wish->lease_sm_percent > 0) + (limited > 0) + (wish->lease_domain[0] != 0));
	pack_key(pack, "name", wish->lease_name[0] ? wish->lease_name : program_invocation_short_name);
	mpsd_pack_text(pack, "selector");
	mpsd_pack_map(pack, 2);
	pack_key(pack, "kind", "pid");
	pack_key(pack, "value", "self");
	mpsd_pack_text(pack, "gpus");
	mpsd_pack_array(pack, count);
	for (unsigned i = 0; i < count; i++)
		mpsd_pack_text(pack, names[i]);
	mpsd_pack_text(pack, "wait_seconds");
	mpsd_pack_double(pack, wish->lease_wait_seconds);
	if (wish->lease_sm_percent > 0) {
		mpsd_pack_text(pack, "sm_percent");
		mpsd_pack_double(pack, wish->lease_sm_percent);
	}
	if (limited) {
		mpsd_pack_text(pack, "memory_bytes");
		mpsd_pack_map(pack, limited);
		for (unsigned i = 0; i < limited; i++) {
			mpsd_pack_text(pack, count ? names[i] : all[i]);
			mpsd_pack_uint(pack, wish->lease_memory_bytes);
		}
	}
	if (wish->lease_domain[0])
		pack_key(pack, "domain", wish->lease_domain);
	return 0;
}

static int read_grant(const struct mpsd_unpack *lease, struct grant *out)
{
	struct mpsd_unpack at;
	const char *state = "";
	size_t bytes = 0;
	int rc;

	rc = mpsd_unpack_find(lease, "id", &at) < 0 ? -EPROTO : mpsd_unpack_uint(&at, &out->id);
	if (rc == 0)
		rc = mpsd_unpack_find(lease, "state", &at) < 0 ? -EPROTO : mpsd_unpack_text(&at, &state, &bytes);
	if (rc < 0)
		return rc;
	out->is_active = bytes == 6 && memcmp(state, "active", 6) == 0;
	if (mpsd_unpack_find(lease, "sm_percent", &at) == 0)
		mpsd_unpack_double(&at, &out->sm_percent);
	return 0;
}

static int call_for_grant(struct mpsd_session *session, const char *method, const struct mpsd_pack *pack, bool may_repeat,
			  struct grant *out)
{
	struct mpsd_answer answer;
	int rc = mpsd_call(session, method, pack->bytes, pack->used, NULL, 0, may_repeat, 0, &answer);

	if (rc < 0)
		return rc;
	rc = read_grant(&answer.result, out);
	mpsd_answer_clear(&answer);
	return rc;
}

/* As long as was asked for, and a little. */
static int wait_until_active(struct mpsd_session *session, const struct settings *wish, struct grant *grant)
{
	struct timespec nap = { 0, (long)(POLL_SECONDS * 1e9) };
	double until = session_now() + wish->lease_wait_seconds + REFUSAL_SECONDS;
	unsigned char bytes[64];
	struct mpsd_pack pack;
	int rc = 0;

	while (rc == 0 && !grant->is_active && session_now() < until) {
		nanosleep(&nap, NULL);
		mpsd_pack_begin(&pack, bytes, sizeof(bytes));
		mpsd_pack_map(&pack, 1);
		mpsd_pack_text(&pack, "id");
		mpsd_pack_uint(&pack, grant->id);
		rc = call_for_grant(session, "lease.get", &pack, true, grant);
	}
	return rc < 0 ? rc : grant->is_active ? 0 : -ETIME;
}

static int ask(struct mpsd_session *session, const struct settings *wish, struct grant *out)
{
	unsigned char *bytes = malloc(MPSD_DATAGRAM_BYTES);
	struct mpsd_pack pack;
	int rc;

	if (!bytes)
		return -ENOMEM;
	mpsd_pack_begin(&pack, bytes, MPSD_DATAGRAM_BYTES);
	rc = pack_lease(&pack, session, wish);
	if (rc == 0)
		rc = call_for_grant(session, "lease.create", &pack, false, out);
	free(bytes);
	return rc < 0 ? rc : wait_until_active(session, wish, out);
}

/* The user's own setting stays, unless the lease allows less, or it is no share: the driver would not limit the process. */
static void put_number(const char *name, double value)
{
	const char *there = getenv(name);
	double own = there ? strtod(there, NULL) : 0;
	char text[32];

	if (own > 0 && own <= value)
		return;
	snprintf(text, sizeof(text), "%.6g", value);
	setenv(name, text, 1);
}

/* In MiB: what the program's own setting ("0=1G,1=512M") allows that GPU, if that is understood and less than the lease. */
static uint64_t least_memory(const char *own, int ordinal, uint64_t most)
{
	for (; own; own = strchr(own, ',') ? strchr(own, ',') + 1 : NULL) {
		char *end;
		long number = strtol(own, &end, 10);
		double size;

		if (end == own || *end != '=' || number != ordinal)
			continue;
		size = strtod(end + 1, &end);
		size *= *end == 'G' ? 1024 : *end == 'M';
		if (size >= 1 && size < (double)most && (!end[1] || strchr(",B", end[1])))
			most = (uint64_t)size;
	}
	return most;
}

/* By ordinals, as CUDA counts them here; other names of GPUs in the program's own setting are not understood. */
static void put_memory(uint64_t bytes, unsigned gpus)
{
	const char *name = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", *own = getenv(name);
	uint64_t most = bytes >> 20 ? bytes >> 20 : 1;
	char text[2048] = ""; /* for 64 GPUs, 25 bytes each */
	size_t used = 0;

	for (int i = 0; i < 16 || i < (int)gpus; i++)
		used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%d=%lluM", i ? "," : "", i,
					 (unsigned long long)least_memory(own, i, most));
	setenv(name, text, 1);
}

static void apply(struct mpsd_session *session, const struct settings *wish, const char *domain)
{
	char names[64][81];

	setenv("MPSD_PIPE_DIRECTORY", session_directory(), 1); /* for programs that this one starts */
	setenv("CUDA_MPS_PIPE_DIRECTORY", domain, 1);
	if (wish->lease_sm_percent > 0 && wish->lease_sm_percent < 100)
		put_number("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", wish->lease_sm_percent);
	if (wish->lease_memory_bytes)
		put_memory(wish->lease_memory_bytes, all_devices(session, names));
	shim_log("limits are in the environment, the domain is %s", domain);
}

/* Why a lease that was asked for is not there. */
static const char *why_not(struct mpsd_session *session, int rc)
{
	const char *words = mpsd_error(session);

	if (rc == -ETIME)
		return "it was still queued after MPSD_LEASE_WAIT";
	return *words ? words : "mpsd does not tell its GPUs, which MPSD_LEASE_MEMORY is for";
}

static CUresult refuse(const struct settings *wish, const char *what, const char *why)
{
	shim_log("%s: %s%s", what, why, wish->is_required ? ": cuInit gives 805, since MPSD_REQUIRED is set" : ": going on without");
	return wish->is_required ? (CUresult)ERROR_MPS_CONNECTION_FAILED : CUDA_SUCCESS;
}

/* Take no lease, but follow the wish as far as an mpsd without root can; refuse if it asks for more and is required. */
static CUresult go_to(struct mpsd_session *session, const struct settings *wish, const char *domain)
{
	CUresult result = CUDA_SUCCESS;

	if (wish->lease_domain[0] && strcmp(wish->lease_domain, "shared") != 0)
		result = refuse(wish, "MPSD_LEASE_DOMAIN", "mpsd has no such domains without root");
	if (result == CUDA_SUCCESS)
		apply(session, wish, domain);
	return result;
}

CUresult lease_take(void)
{
	const struct settings *wish = settings();
	struct mpsd_session *session;
	struct grant grant = { 0 };
	char domain[4096];
	int rc;

	if (!wish->wants_lease && !wish->is_required)
		return CUDA_SUCCESS;
	if (wish->is_required && wish->misread)
		return refuse(wish, wish->misread, "its value is not understood");
	session = session_get();
	if (!session)
		return refuse(wish, "mpsd", "it cannot be reached");
	if (is_pointed(domain, sizeof(domain)))
		return go_to(session, wish, domain);
	if (!wish->wants_lease)
		return CUDA_SUCCESS;
	rc = ask(session, wish, &grant);
	if (rc < 0)
		return refuse(wish, "lease", why_not(session, rc));
	shim_log("lease %llu: %g %% of the SMs", (unsigned long long)grant.id, grant.sm_percent);
	return CUDA_SUCCESS;
}
