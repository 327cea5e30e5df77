/* The fake machine: its GPUs, their memory and the processes on them.
 *
 * One file, MPSD_SIM_DIR/machine, mapped by every part of the simulator. It is read and written only under machine_lock(). The
 * kernel shows which processes live: each process holds a lock on the byte of its slot, which the kernel releases when the
 * process ends, however it ends. Prose: docs/simulator.md, "The machine". */
#ifndef MPSD_SIM_MACHINE_H
#define MPSD_SIM_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
	MACHINE_MAGIC = 0x6d707364,
	MACHINE_VERSION = 3,
	MACHINE_GPUS = 16,
	MACHINE_PROCESSES = 2048,
	MACHINE_BLOCKS = 131072, /* a power of two */
	MACHINE_TICKETS = 6,
	MACHINE_HOLDERS = MACHINE_PROCESSES / 64,
	MACHINE_XIDS = 256,
	MACHINE_UUID = 48,
	MACHINE_SMS = 132,
	MACHINE_MEMORY_MIB = 143771,
	MACHINE_RESERVED_MIB = 616, /* of which CUDA knows nothing */
};

enum machine_mode { MACHINE_DEFAULT = 0, MACHINE_PROHIBITED = 2, MACHINE_EXCLUSIVE = 3 };
enum machine_kind { MACHINE_FREE = 0, MACHINE_PLAIN, MACHINE_CLIENT, MACHINE_SERVER };

struct machine_gpu {
	char uuid[MACHINE_UUID];
	char name[32];
	uint64_t memory_bytes;
	uint32_t sm_count;
	uint32_t mode; /* enum machine_mode */
	uint64_t xids; /* how many this GPU has had */
	uint64_t clearing_until_ns; /* CLOCK_MONOTONIC: the driver is at work on a fault */
	uint64_t is_lost;           /* NVML does not reach it */
	uint64_t is_drained;        /* an administrator drains it, as by `nvidia-smi drain` */
	uint64_t reserved[1];
};

struct machine_process {
	uint32_t kind;      /* enum machine_kind */
	int32_t pid;        /* as the daemons know it */
	int32_t server_pid; /* of a client */
	uint32_t faulted;   /* mask of GPUs on which `mpsd-sim xid` asked for a fault */
	uint32_t contexts[MACHINE_GPUS];
	uint64_t used_bytes[MACHINE_GPUS];
};

struct machine_block { /* memory of cuMemCreate: it lives while a process uses it or a descriptor of it is open */
	uint64_t id;    /* names the file memory/ID; modulo MACHINE_BLOCKS its slot.  0: free slot */
	uint64_t bytes;
	uint32_t gpu;
	uint32_t holders;   /* how many bits are set below */
	uint32_t next_free; /* of a free slot: the next one, counted from 1; 0: the last */
	uint32_t reserved;
	uint64_t tickets[MACHINE_TICKETS]; /* inodes of what was exported: memory files with a lock, until the last close; 0: none */
	uint64_t held[MACHINE_HOLDERS]; /* by process slot */
};

struct machine_xid {
	uint64_t sequence; /* from 1 */
	uint64_t time_ns;  /* CLOCK_REALTIME */
	uint32_t gpu;
	uint32_t code;
	int32_t pid;
	uint32_t reserved;
	char text[256];
};

struct machine_state {
	uint32_t magic;
	uint32_t version;
	uint32_t gpu_count;
	uint32_t reserved;
	uint32_t first_free_block; /* counted from 1; 0: none below block_end */
	uint32_t block_end;        /* slots from here on were never used; so with processes */
	uint32_t process_end;
	uint32_t rm_clients; /* a count, for the handles of RM clients */
	uint64_t next_block; /* a count; the upper part of an id */
	uint64_t next_xid;
	uint64_t ticket_device; /* of the kernel's memory files */
	uint64_t block_bytes[MACHINE_GPUS];
	struct machine_gpu gpus[MACHINE_GPUS];
	struct machine_process processes[MACHINE_PROCESSES];
	struct machine_block blocks[MACHINE_BLOCKS];
	struct machine_xid xids[MACHINE_XIDS];
};

/* open.c */
const char *machine_directory(void);     /* borrowed; constant for the process's life */
struct machine_state *machine_open(void); /* NULL: cannot be opened or is of another version */
void machine_lock(void);                  /* any thread, not from a signal handler; blocks briefly */
void machine_unlock(void);
bool machine_slot_is_held(unsigned slot); /* by a living process other than through our own handle */
int machine_slot_hold(unsigned slot);     /* 0, or -errno */
void machine_slot_drop(unsigned slot);
void machine_forget_after_fork(void);

/* processes.c; the caller holds the lock unless the comment differs */
int machine_join(enum machine_kind kind, pid_t pid, pid_t server_pid); /* slot, or -errno; takes the lock */
struct machine_process *machine_self(void);                             /* NULL before machine_join() */
int machine_own_slot(void);                                             /* -1 before it */
void machine_reap(void);
bool machine_may_create_context(unsigned gpu);

/* memory.c; the caller holds the lock unless the comment differs */
uint64_t machine_used_bytes(unsigned gpu);
bool machine_fits(unsigned gpu, uint64_t bytes); /* still, once the dead have gone */
bool machine_charge(unsigned gpu, uint64_t bytes); /* takes the lock; false: out of memory */
void machine_release(unsigned gpu, uint64_t bytes); /* takes the lock */

/* blocks.c; the caller holds the lock unless the comment differs */
int machine_block_create(unsigned gpu, uint64_t bytes, uint64_t *id); /* 0, or -errno; the caller's process holds it */
int machine_block_export(uint64_t id); /* a memory file that keeps it alive, or -errno; -EMFILE: too many are open */
int machine_block_find(int fd, unsigned *gpu, uint64_t *bytes, uint64_t *id); /* of what was exported: 0, or -ENOENT */
int machine_block_hold(uint64_t id);  /* by the caller's process: 0, or -ENOENT */
void machine_block_drop(uint64_t id); /* by the caller's process; it may be gone after that */
int machine_block_open(uint64_t id);  /* its bytes, to be mapped: a descriptor that keeps nothing alive, or -errno; no lock needed */
void machine_blocks_leave(unsigned slot); /* release all blocks of a process */
void machine_reap_blocks(void);

/* devices.c */
struct machine_view { /* the GPUs a process may see, in its own order */
	unsigned count;
	unsigned gpu[MACHINE_GPUS];
};
enum machine_view_error { MACHINE_VIEW_OK = 0, MACHINE_VIEW_BAD_ORDINAL, MACHINE_VIEW_BAD_UUID };
struct machine_view machine_all(void);
struct machine_view machine_visible(const struct machine_view *base, const char *list,
				    enum machine_view_error *error);
int machine_find_gpu(const struct machine_view *view, const char *name); /* index in view, or -1 */
unsigned machine_sms(unsigned gpu, double percent);

/* xids.c; each takes the lock but the first */
int machine_open_log(const char *directory); /* makes it where it is missing; the caller closes it; -1: it cannot be opened */
void machine_xid(unsigned gpu, unsigned code, pid_t pid, const char *text);
void machine_xid_mmu(unsigned gpu, pid_t pid, const char *access); /* 31: "faulted @ ...": the process that owned the channel */
void machine_xid_exception(unsigned gpu, const char *what);        /* 13, twice; no pid */
void machine_xid_channel(unsigned gpu, pid_t pid);                 /* 43 */
void machine_wait_clear(unsigned gpu); /* until the driver has cleared up after the last Xid: what changes mappings does */

/* clock.c */
uint64_t machine_now_ns(void); /* CLOCK_MONOTONIC */
bool machine_is_fast(void);    /* MPSD_SIM_FAST=1 */
unsigned machine_delay_ms(unsigned usual_ms, unsigned fast_ms);
unsigned long machine_knob(const char *name, unsigned long otherwise);
void machine_sleep_ms(unsigned ms);
bool machine_is_lost(const char *knob); /* true at random, in the percentage of cases that the knob sets */

#endif
