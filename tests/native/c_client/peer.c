/* SPDX-License-Identifier: MIT */
/* The rule of mpsd/code/peer.h: `peer LISTENS GID OWN UID_MAP` prints 1 (trusted) or the refusal. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "mpsd/code/peer.h"

int main(int argc, char **argv)
{
	char why[MPSD_PEER_WORDS];
	struct ucred peer = { 0 };
	uid_t own;

	if (argc != 5)
		return 2;
	peer.uid = (uid_t)strtoul(argv[1], NULL, 10);
	peer.gid = (gid_t)strtoul(argv[2], NULL, 10);
	own = (uid_t)strtoul(argv[3], NULL, 10);
	if (mpsd_peer_is_trusted(peer.uid, own, mpsd_peer_hides_root(argv[4]))) {
		puts("1");
		return 0;
	}
	mpsd_peer_say(&peer, own, why, sizeof(why));
	puts(why);
	return 0;
}
