/* SPDX-License-Identifier: MIT */
/* mpsd/code/peer.h: whether who listens at a socket may be taken for mpsd.  The C client, the shim and the front end ask before they
 * send anything; the Python client has the same rule in _peer.py.  Why: docs/decisions/031-a-client-asks-who-listens.md. */
#ifndef MPSD_CODE_PEER_H
#define MPSD_CODE_PEER_H

enum {
	/* the uid that the kernel reports for a user without a mapping in this user namespace: user_namespaces(7) */
	MPSD_OVERFLOW_UID = 65534,
	MPSD_PEER_WORDS = 200      /* room for the words of a refusal */
};

/* Whether root outside this user namespace has no uid inside: no line of the map leads to uid 0. A map that cannot be read
 * counts as not hiding root. */
static inline int mpsd_peer_hides_root(const char *uid_map)
{
	unsigned inside, outside, count;
	int hides = 0;
	FILE *map = fopen(uid_map, "re");

	if (!map)
		return 0;
	while (fscanf(map, "%u %u %u", &inside, &outside, &count) == 3) {
		hides = outside != 0;
		if (!hides)
			break;
	}
	fclose(map);
	return hides;
}

static inline int mpsd_peer_is_trusted(uid_t listens, uid_t own, int hides_root)
{
	return listens == 0 || listens == own || (hides_root && listens == MPSD_OVERFLOW_UID);
}

static inline void mpsd_peer_say(const struct ucred *peer, uid_t own, char *why, size_t room)
{
	if (own)
		snprintf(why, room, "uid %u listens there, not root or uid %u", (unsigned)peer->uid, (unsigned)own);
	else
		snprintf(why, room, "uid %u listens there, not root; to use a daemon of that user, run as that user: "
				    "setpriv --reuid=%u --regid=%u --clear-groups COMMAND",
			 (unsigned)peer->uid, (unsigned)peer->uid, (unsigned)peer->gid);
}

/* After connect(), before anything is sent.  Fills *peer, who listens (called listen(2)).  0; -EPERM: another user does; -errno.
 * On failure `why` has the words. */
static inline int mpsd_peer_check(int fd, struct ucred *peer, char *why, size_t room)
{
	socklen_t size = sizeof(*peer);
	uid_t own = geteuid();
	int rc;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, peer, &size) < 0) {
		rc = -errno;
		snprintf(why, room, "%s", strerror(-rc));
		return rc;
	}
	if (mpsd_peer_is_trusted(peer->uid, own, peer->uid == MPSD_OVERFLOW_UID && mpsd_peer_hides_root("/proc/self/uid_map")))
		return 0;
	mpsd_peer_say(peer, own, why, room);
	return -EPERM;
}

#endif
