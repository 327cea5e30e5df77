/* The protocol between the simulator's parts. Private to the simulator.
 *
 *   control -> new peer: GREETING; then it waits for that peer alone, without limit
 *   client  -> control   PROBE                       <- PROBED, closed
 *   client  -> control   HELLO <- WELCOME, ATTACH <- GRANT + descriptor | REFUSE, DONE, closed
 *   UI      -> control   UI <- UI_READY, (COMMAND <- OUTPUT*, END)*
 *   server  -> control   SERVER <- CONFIG, READY, (request <- ANSWER)*
 *   server  -> client    ACCEPT + page | REFUSE, then FAULTED at any time
 *   client  -> server    FAULT, BYE
 *
 * One datagram is one message: a link_head, then link_head.size bytes.  The kernel's SCM_CREDENTIALS
 * identify the sender, so that a relay can vouch for others. */
#ifndef MPSD_SIM_LINK_H
#define MPSD_SIM_LINK_H

#include "machine.h"

enum { LINK_MAGIC = 0x4c4b0001, LINK_PAYLOAD = 65536, LINK_NO_FD = -1 };

enum link_kind {
	LINK_GREETING = 1, LINK_PROBE, LINK_PROBED,
	LINK_HELLO, LINK_WELCOME, LINK_ATTACH, LINK_GRANT, LINK_REFUSE, LINK_DONE,
	LINK_UI, LINK_UI_READY, LINK_COMMAND, LINK_OUTPUT, LINK_END,
	LINK_SERVER, LINK_CONFIG, LINK_READY, LINK_NEW_CLIENT,
	LINK_GET_STATUS, LINK_GET_CLIENTS, LINK_TERMINATE, LINK_SHUTDOWN, LINK_ANSWER,
	LINK_ACCEPT, LINK_FAULT, LINK_FAULTED, LINK_BYE,
};

enum fault_class { /* status of FAULT: what a kernel did, or what befell it */
	FAULT_MMU = 1, FAULT_TRAP, FAULT_ASSERT, FAULT_ILLEGAL, FAULT_MISALIGNED, FAULT_STACK,
	FAULT_DUMPED_ASSERT, /* an assert of a client that writes core dumps: its co-runners do not survive it */
	FAULT_KILLED, /* the server's own: a client died in the middle of a kernel */
	FAULT_DEVICE, /* asked for with `mpsd-sim xid` */
	FAULT_CLASSES,
};

struct link_head {
	uint32_t magic;
	uint32_t kind;
	int32_t pid;
	int32_t uid;
	int32_t context; /* 0: the process itself */
	int32_t status;  /* a CUresult, or as the kind defines */
	uint32_t size;   /* of the payload */
	uint32_t flags;  /* of FAULTED: enum fault_class, 0 if of none */
};

struct link_limit { /* as given: a device is named by ordinal or UUID and not checked */
	char device[MACHINE_UUID];
	uint64_t bytes;
};

struct link_settings { /* payload of CONFIG and ACCEPT */
	double percent;
	int32_t priority;
	uint32_t limit_count;
	struct link_limit limits[MACHINE_GPUS];
};

struct link_accept { /* payload of ACCEPT */
	double percent;
	int32_t priority;
	uint32_t gpu_count;                 /* the GPUs that the server has */
	uint32_t gpus[MACHINE_GPUS];
	uint64_t limit_bytes[MACHINE_GPUS]; /* by machine GPU; 0: none */
};

struct link_client { /* one row of the ANSWER to GET_CLIENTS; its flags hold the first row wanted */
	int32_t pid;
	int32_t context;
	uint32_t id; /* the server's count */
	uint32_t gpu;
	uint64_t namespace_id;
	char command[64];
};

#define LINK_ENDLESS_NS (1ull << 45) /* half a day: so that a queue of them has a sum */

enum link_effect_kind { LINK_NOTHING, LINK_ADD, LINK_TICK, LINK_FILL };
enum { LINK_EFFECTS = 48, LINK_TICK_NS = 500000 };

struct link_effect { /* what one kernel does to memory that others may have too, so that it can be done when its process has died */
	uint32_t kind;     /* ADD: `value`, at its end.  TICK: 1, every LINK_TICK_NS while it lasts.  FILL: the pattern of fill() */
	uint32_t others;   /* link_page.others_done must have reached this: it comes after them in the queue */
	uint64_t needs_ns; /* how long it takes */
	uint64_t block;    /* the machine's; and where in it, in bytes */
	uint64_t offset;
	uint64_t words;    /* of FILL: how many */
	uint64_t value;    /* of FILL: the seed */
	uint64_t given_ns; /* when it was launched */
};

static inline uint64_t link_pattern(uint64_t seed, uint64_t index) /* of fill(), for word `index` */
{
	return seed ^ index * 0x9e3779b97f4a7c15u;
}

struct link_page { /* shared by one context and its server: the client writes but for is_held, the server reads */
	_Atomic uint64_t kernel_started_ns; /* 0: idle */
	_Atomic uint64_t kernel_needs_ns;   /* at most LINK_ENDLESS_NS */
	_Atomic uint64_t queued_needs_ns;   /* of the kernels behind it */
	_Atomic int32_t space_pid;          /* names its files in MPSD_SIM_DIR/uvm; 0: it made none */
	_Atomic int32_t is_held;            /* server: an SM exception holds the GPU, no work gets on */
	_Atomic uint32_t others_done;     /* work that this page does not describe, and that the process alone can do: a count */
	_Atomic uint64_t kernel_ended_ns; /* the last one */
	_Atomic uint64_t first_effect, effects_end; /* of the kernels that are not over; counts, modulo LINK_EFFECTS the places */
	struct link_effect effects[LINK_EFFECTS];
};
_Static_assert(sizeof(struct link_page) <= 4096, "it is one page");

/* When the running kernel began, or would have begun if its thread had reached it; 0: no kernel. */
static inline uint64_t link_began_ns(const struct link_page *page)
{
	uint64_t started = page->kernel_started_ns, first = page->first_effect, ended = page->kernel_ended_ns;
	uint64_t given = page->effects[first % LINK_EFFECTS].given_ns;

	if (started || first == page->effects_end)
		return started;
	return given > ended ? given : ended;
}

struct link_packet {
	struct link_head head;
	pid_t pid; /* the sender's; 0: unknown */
	uid_t uid;
	int fd; /* the receiver's to close; LINK_NO_FD: none came */
	_Alignas(8) char payload[LINK_PAYLOAD]; /* rows of a struct are written and read in place */
};

/* 0, or -errno.  Never blocks longer than `timeout_ms`; -1: for ever. */
int link_send(int socket, enum link_kind kind, struct link_head head, const void *payload, size_t size, int pass_fd);
int link_receive(int socket, struct link_packet *packet, int timeout_ms); /* -EPIPE: closed; -EPROTO: not ours */
int link_connect(const char *directory, const char *name); /* socket, once greeted, or -errno; may wait for ever */
const char *link_pipe_directory(void);
void link_more_descriptors(void); /* as many as the limit allows: a client uses two of its server's */

/* log.c: "[2026-11-20 12:30:15.126 Control   925] text" */
size_t log_format(char *line, size_t size, const char *who, const char *text); /* length with newline */
void log_put(int fd, const char *text, size_t length); /* best effort: a reader that has gone misses it */

#endif
