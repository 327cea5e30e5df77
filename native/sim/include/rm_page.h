/* The stand-in for the resource manager's (RM) objects of a client: what fills MPSD_SIM_DIR/uvm/PID.control, and PID.sm, a FIFO
 * that gets a byte for each SM exception in the client's server once a debugger has asked for it.
 *
 * The client makes the page. A debugger (native/sim/driver/rm.c in another process) and the server write to it.  Prose:
 * docs/simulator.md, "SM exceptions with a stopped client". */
#ifndef MPSD_SIM_RM_PAGE_H
#define MPSD_SIM_RM_PAGE_H

#include <assert.h>
#include <stdint.h>

enum { RM_PAGE_MAGIC = 0x534d5243, RM_PAGE_BYTES = 4096 };

struct rm_page {
	uint32_t magic;       /* client, once */
	uint32_t client;      /* client, once: the handle of its RM client */
	uint32_t shared_with; /* debugger: the RM client that may debug; 0: none */
	uint32_t has_session; /* debugger */
	uint32_t resumes;     /* debugger, release: how often it has resumed */
	uint32_t sms;         /* server, release: how many SMs show the error, to the end of the client */
	uint64_t resumed_ns;  /* debugger, before `resumes`: the last time */
	uint64_t pc;          /* server, before the event: of the error that the first SM reports */
	uint32_t warp_esr;    /* server */
	uint32_t global_esr;  /* server */
};
static_assert(sizeof(struct rm_page) == 48 && sizeof(struct rm_page) <= RM_PAGE_BYTES, "struct rm_page");

#endif
