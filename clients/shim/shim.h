/* shim.h: declarations shared by the parts of libmpsd.so. Prose: docs/shim.md.
 *
 * The shim does not exit, print, or wait without an end, and it reports failures of mpsd to MPSD_LOG and not to the program.
 * Locks: placement.c has one, functions.c another; the loader is not called with either held. */
#ifndef SHIM_H
#define SHIM_H

#define MPSD_NO_CUDA_H /* no toolkit is needed to build it */
#define MPSD_API       /* hidden, as everything that is not exported */
#ifndef SHIM_HAS_MPSD_CODE /* session.c alone */
#define MPSD_NO_CODE
#endif
#include "../c/include/mpsd.h"

#include <stdbool.h>

#define SHIM_EXPORT __attribute__((visibility("default")))

typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUlib_st *CUlibrary;
typedef struct CUkern_st *CUkernel;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraphExec_st *CUgraphExec;
typedef void (*CUhostFn)(void *data);

enum { /* of CUresult; mpsd/driver.h has others */
	ERROR_NOT_INITIALIZED = 3,
	ERROR_MPS_CONNECTION_FAILED = 805
};

#define LAUNCH_PARAMETERS                                                                                                  \
	(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,        \
	 unsigned block_z, unsigned shared_bytes, CUstream stream, void **values, void **extra)
#define LAUNCH_ARGUMENTS \
	(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, values, extra)
#define COOPERATIVE_PARAMETERS                                                                                             \
	(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,        \
	 unsigned block_z, unsigned shared_bytes, CUstream stream, void **values)
#define COOPERATIVE_ARGUMENTS (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, values)

/* The hooks themselves. */
#define SYNC OWN
#define WATCH OWN
#define OWN(name, base, since, stream, parameters, arguments) SHIM_EXPORT CUresult name parameters;
#include "hooks.def"
#undef OWN

/* real.c: libcuda's own functions. NULL: this libcuda does not have it. */
struct real {
#define OWN(name, base, since, stream, parameters, arguments) CUresult(*name) parameters;
#include "hooks.def"
#undef OWN
#undef SYNC
#undef WATCH
	CUresult (*cuCtxGetCurrent)(CUcontext *context);
	CUresult (*cuCtxGetDevice)(CUdevice *device);
	CUresult (*cuDeviceGetUuid_v2)(CUuuid *uuid, CUdevice device);
	CUresult (*cuDevicePrimaryCtxRetain)(CUcontext *context, CUdevice device);
	CUresult (*cuDevicePrimaryCtxGetState)(CUdevice device, unsigned *flags, int *active);
	CUresult (*cuDeviceTotalMem_v2)(size_t *bytes, CUdevice device);
	int (*mpsd_sim_uvm_ioctl)(int fd, unsigned long number, void *argument); /* the simulator's libcuda, and */
	int (*mpsd_sim_uvm_mmap)(void *address, size_t bytes);                   /* ... what stands for mmap(2) there */
	struct mpsd_driver vmm; /* all functions or none: has_vmm */
	bool has_vmm;
};
extern struct real real;                    /* valid after real_load() */
extern void *(*real_dlsym)(void *, const char *);
extern void *(*real_dlvsym)(void *, const char *, const char *);
bool real_load(void);                       /* false: libcuda is not in this process. Takes no lock of the shim */
void real_find_dlsym(void);
bool real_is_driver(const void *address);   /* whether it lies in libcuda */

/* resolve.c */
struct hook {
	const char *name, *base;
	int since;
	bool is_per_thread;
	void *replacement;
	size_t slot; /* where the real one is, from the start of `real` */
};
const struct hook *hook_named(const char *name);
static inline void **hook_slot(const struct hook *hook) { return (void **)((char *)&real + hook->slot); }

/* gate.c: whether the shim acts, here and now. */
extern __thread int gate_depth;             /* of this thread: over 0 while the shim itself calls the driver */
bool gate_is_off(void);                     /* MPSD_SHIM=off, or a child of a process that had begun */
void gate_begin(void);                      /* CUDA has begun: from now on a child after fork is left alone */
bool gate_has_begun(void);
static inline bool gate_is_open(void) { return gate_depth == 0 && !gate_is_off(); }

/* settings.c: the environment, read once. */
enum shield { SHIELD_OFF, SHIELD_ABSORB, SHIELD_REPORT };
struct settings {
	bool is_required;
	bool wants_lease;                   /* any MPSD_LEASE_... is there */
	const char *misread;                /* an MPSD_LEASE_... that was not understood; NULL: none */
	char lease_name[129];
	double lease_sm_percent;            /* 0: not set */
	uint64_t lease_memory_bytes;        /* 0: not set */
	double lease_wait_seconds;
	char lease_domain[16];              /* "": not set */
	char arena[129];                    /* "": none */
	uint64_t arena_capacity_bytes;      /* 0: what the GPU has */
	uint64_t least_bytes, most_bytes;   /* of an allocation that is placed */
	bool adopts;
	enum shield shield;
	uint64_t band_bytes;
};
const struct settings *settings(void);

/* log.c: one line to MPSD_LOG; without it nothing.  Any thread. */
void shim_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* session.c */
struct mpsd_session *session_get(void);     /* the shim's own; NULL: mpsd does not answer. Waits up to a few seconds, rarely */
void session_after_fork(void);              /* in a child, as its only thread */
double session_now(void);                   /* CLOCK_MONOTONIC, in seconds */
const char *session_directory(void);        /* where mpsd.sock is; what it was before we changed the environment */
void session_tell(const char *method, const void *params, size_t bytes); /* once, within 100 ms, ignoring the outcome */

void init_after_fork(void);                 /* hook_init.c: the same */

/* lease.c: before the first cuInit.  CUDA_SUCCESS, or what cuInit gives instead. */
CUresult lease_take(void);

/* report.c */
void report_result(CUresult result);        /* of a hooked call: the first sticky error is reported to mpsd, once */

/* watched.c: whether mpsd will see GPU faults of this process in a range, from now on.  Asks it, each time. */
bool watched_from_outside(uint64_t base, uint64_t bytes);

/* functions.c: the names of kernels, learnt when they were loaded. */
void functions_learn(const void *function, const char *name);
void functions_same(const void *function, const void *kernel); /* the function of that kernel */
void functions_launched(const void *function);
void functions_settled(void);               /* what was launched has ended */
bool functions_last(char *name, size_t room, bool *only); /* of the last launch; whether nothing else was launched since it settled */

/* placement.c: memory of cuMemAlloc that the shim has placed. */
bool placement_wants(size_t bytes);
CUresult placement_alloc(size_t bytes, CUdeviceptr *address); /* CUDA_ERROR_NOT_SUPPORTED: the driver is to do it */
bool placement_has(CUdeviceptr address);    /* memory that begins there */
bool placement_has_any(void);               /* or had */
CUresult placement_free(CUdeviceptr address);
void placement_context_gone(CUcontext context); /* and its memory */
void placement_settle(bool is_all);         /* a moment at which a commit may be made; is_all: and is expected.  Mostly nothing */

#endif
