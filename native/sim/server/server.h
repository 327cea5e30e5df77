/* The fake MPS server: its connections and its state.
 *
 *   ACTIVE --a client's work faults--> (the delays of fault.c) --> FAULT --last old context gone--> ACTIVE
 *
 * One thread, one poll loop (main.c).  A connection is one "worker thread" of the real one:
 * context 0 for the process itself, 1 and up for its contexts.
 */
#ifndef MPSD_SIM_SERVER_H
#define MPSD_SIM_SERVER_H

#include "link.h"

enum { SERVER_CONNECTIONS = 4096, SERVER_CONTEXT_MIB = 72, };
enum { CUDA_INVALID_VALUE = 1, CUDA_INVALID_CONTEXT = 201, CUDA_ILLEGAL_STATE = 401, CUDA_NOT_READY = 807, CUDA_MAX_CLIENTS = 808, CUDA_TERMINATED = 810 };

struct connection {
	int fd; /* -1: closed, to be forgotten */
	pid_t pid;
	uid_t uid;
	int context;
	unsigned id;
	unsigned gpu;
	uint64_t namespace_id;
	char command[64];
	struct link_page *page;
	int space_fd;           /* of a context: its client's files, to see who holds them at its end; -1: none */
	int control_fd;
	pid_t space_pid;        /* once it has gone: names its address space; 0: it had none */
	uint64_t work_end_ns;   /* when what it left behind is done; 0: it left nothing */
	int refusal;        /* the CUresult that answers it; 0: it is accepted */
	uint64_t answer_ns; /* when; 0: done */
	struct link_settings terms; /* what holds for its process: that of the moment in which the process came */
	bool terminated;    /* its work has been ended: its death harms no other client */
	bool bye;
	bool doomed;        /* it was here when the fault happened */
	bool in_reset;      /* it is the one that faulted */
	int fail_code;      /* 0: report success */
	unsigned fail_class; /* enum fault_class of the fault that ends its work */
	uint64_t fail_ns;   /* when to send fail_code; 0: never */
	int late_code;      /* the code to send after that; 0: none */
	uint64_t late_ns;
};

enum { SERVER_HELD = 256, SERVER_ENDING = 256 };

struct ending { /* a context with a share of its own; its process is ending, or another process holds it */
	bool is_used;
	int space_fd;
	int control_fd;
};

struct held { /* it died with work that it had not done, and another process may keep its address space */
	pid_t pid; /* 0: free */
	pid_t space_pid;
	unsigned gpu;
	uint64_t end_ns; /* when its work ends */
	bool is_harmful; /* if the space is closed before that */
	struct link_effect effects[LINK_EFFECTS]; /* what its kernels still do to memory, the one that runs first */
	unsigned next, count;
	uint64_t began_ns; /* of effects[next] */
	uint64_t ticks;    /* the ticks that are done */
	unsigned char *memory; /* what it works on, mapped; NULL: not yet, or it cannot be had */
	uint64_t bytes;
};

struct server {
	int control;
	struct link_settings settings;
	struct machine_view view;
	struct connection *list;
	unsigned count;
	unsigned next_id;
	pid_t stale_pid; /* what the real one prints before it knows whom it talks to */
	int stale_context;
	uint64_t context_free_ns; /* contexts are created one after the other */
	bool fault;
	bool destroyed; /* the device context has gone after a fault */
	bool leaving;
	pid_t culprit;     /* of the fault in progress; 0: none */
	pid_t to_terminate; /* the control daemon waits for the answer, and does nothing else; 0: it does not */
	struct held held[SERVER_HELD];
	struct ending ending[SERVER_ENDING];
	unsigned lost_shares; /* of contexts with a space that outlived the driver's objects: for as long as the server lives */
};

/* clients.c */
void client_new(struct server *server, const struct link_packet *packet);
void client_said(struct server *server, struct connection *client);
void client_list(struct server *server, unsigned from);
unsigned client_workers(const struct server *server);

/* spaces.c: the address spaces of the dead */
bool space_is_held(pid_t space_pid); /* by its client, which may not have ended yet, or by another process */
void space_forget(const struct server *server, pid_t space_pid); /* takes its files away, unless it is held */
/* Takes nothing.  is_harmful: its death harms the others, unless the space is kept until its work has ended. */
void space_hold(struct server *server, const struct connection *client, bool is_harmful);
void space_open_files(struct connection *client); /* at the arrival of a context */
int space_open_file(pid_t space_pid, const char *what); /* "control", "sm"...: a descriptor, or -1 */
void space_see_end(struct server *server, struct connection *client); /* takes its descriptors */
bool space_is_worn(const struct server *server); /* no context can be made any more */
void space_run(struct server *server, uint64_t now);
uint64_t space_next_ns(const struct server *server, uint64_t now); /* 0: nothing to come */

/* leftover.c: what the dead left to do */
void leftover_take(struct held *held, const struct link_page *page, uint64_t now); /* borrows the page */
void leftover_run(struct held *held, uint64_t now); /* what would have been done by now */
void leftover_end(struct server *server, struct held *held); /* its place is free afterwards */

/* terminate.c */
void terminate_asked(struct server *server, pid_t pid); /* answers, or keeps the control daemon waiting */
void terminate_run(struct server *server);
bool process_is_stopped(pid_t pid);

/* answers.c */
void client_answers(struct server *server, uint64_t now);

/* fault.c */
void fault_begin(struct server *server, const struct connection *culprit, enum fault_class class, const char *access);
void fault_run(struct server *server, uint64_t now);
uint64_t fault_next_ns(const struct server *server); /* 0: nothing to come */
void fault_client_gone(struct server *server);
bool fault_is_near(const struct server *server); /* on its way, or here */

void fault_continue(struct server *server, enum fault_class class); /* of an exception that was blocked until now */

/* exception.c: SM exceptions while a client is stopped */
bool exception_begin(struct server *server, struct connection *culprit, enum fault_class class, const char *detail,
		     uint64_t culprit_knows_ns); /* false: nothing is stopped, or it is no SM exception */
bool exception_blocks(void); /* the server answers nobody */
bool exception_hangs_culprit(void);
bool exception_keeps(pid_t space_pid); /* it may not be forgotten yet */
void exception_client_gone(struct server *server, const struct connection *client);
void exception_run(struct server *server, uint64_t now);
uint64_t exception_next_ns(uint64_t now); /* 0: nothing to come */

/* startup.c */
void startup(struct server *server); /* exits on failure */
void create_device_contexts(struct server *server);

/* log.c */
void log_as(const char *who, const char *format, ...) __attribute__((format(printf, 2, 3)));
#define log_server(...) log_as("Server", __VA_ARGS__)

#endif
