/* Which of what was exported is still open somewhere; blocks.c alone. */
#ifndef MPSD_SIM_TICKETS_H
#define MPSD_SIM_TICKETS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

enum { TICKET_LOOKS = 5 };

struct tickets { /* the tickets with a lock that was seen; the caller frees `inodes` */
	uint64_t *inodes;
	size_t count, room;
	bool is_unknown; /* the kernel does not list locks: treat all as living */
};

int ticket_make(uint64_t id, struct stat *info);            /* a descriptor, or -errno */
void tickets_look(struct tickets *tickets, unsigned number); /* adds what it sees; number: below TICKET_LOOKS, another each time */
bool ticket_is_live(const struct tickets *tickets, uint64_t inode);

#endif
