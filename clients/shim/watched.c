/* MPSD_SHIELD=report: mpsd reads the event queue of this process; the shim reports the addresses of its guards, so that mpsd
 * recognises accesses to them, which are faults without harm. fault.guards in docs/protocol.md. */
#include "shim.h"

bool watched_from_outside(uint64_t base, uint64_t bytes)
{
	struct mpsd_session *session = session_get();
	unsigned char params[64];
	struct mpsd_answer answer;
	struct mpsd_unpack at;
	struct mpsd_pack pack;
	int is_watched = 0;

	if (!session)
		return false;
	mpsd_pack_begin(&pack, params, sizeof(params));
	mpsd_pack_map(&pack, 2);
	mpsd_pack_text(&pack, "base");
	mpsd_pack_uint(&pack, base);
	mpsd_pack_text(&pack, "bytes");
	mpsd_pack_uint(&pack, bytes);
	if (mpsd_call(session, "fault.guards", params, pack.used, NULL, 0, 1, 0, &answer) < 0) {
		shim_log("%s", mpsd_error(session));
		return false;
	}
	if (mpsd_unpack_find(&answer.result, "is_watched", &at) == 0)
		mpsd_unpack_bool(&at, &is_watched);
	mpsd_answer_clear(&answer);
	return is_watched;
}
