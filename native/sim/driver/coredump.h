/* The interface between coredump.c, which decides when to write a dump, and coredump_tables.c, which fills it. */
#ifndef MPSD_SIM_COREDUMP_H
#define MPSD_SIM_COREDUMP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { COREDUMP_BYTES = 32768 };

struct coredump_exception {
	const char *kernel;   /* the one that makes it */
	uint32_t kind;        /* CUDBGException_t; 0: a trap, which is a breakpoint to the debugger */
	bool on_lane, on_gpu; /* a lane has the number; an SM that is not the culprit's shows it to all clients */
};

size_t coredump_make(unsigned char data[COREDUMP_BYTES], const struct coredump_exception *exception, pid_t pid,
		     bool is_culprit); /* how many bytes; 0: no memory */

#endif
