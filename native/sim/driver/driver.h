/* The fake CUDA driver: its objects, and the functions that its files share.
 *
 * A context has one worker thread (queue.c) that does its work in order; a process under MPS has one more thread (listener.c)
 * that reads its server's messages. Prose: docs/simulator.md. */
#ifndef MPSD_SIM_DRIVER_H
#define MPSD_SIM_DRIVER_H

#include "cuda.h"
#include "link.h"

#include <pthread.h>

#define SIM_EXPORT __attribute__((visibility("default")))
/* The same of the per-thread default stream, suffix _ptsz or _ptds: all work of a context is in one order here. */
#define SIM_PER_THREAD(name, suffix) extern __typeof__(name) name##suffix __attribute__((alias(#name), visibility("default")))

enum { DRIVER_DEVICES = MACHINE_GPUS, DRIVER_LINKS = 128, DRIVER_CONTEXT_MIB = 516 };

struct work { /* one item of a context's queue */
	struct work *next;
	void (*run)(CUcontext context, struct work *work);
	uint64_t number; /* from 1, per context */
	bool is_other;   /* its server could not do it in its place (page.c) */
	union {
		struct {
			CUdeviceptr to, from;
			size_t bytes;
		} copy;
		struct {
			CUdeviceptr to;
			size_t count;
			uint32_t value;
			unsigned width;
		} set;
		struct {
			CUhostFn function;
			void *data;
		} call;
		CUevent event;
		struct {
			const struct kernel *kernel;
			unsigned grid, block;
			uint64_t values[8];
			struct link_effect effect;
			bool is_told; /* its effect has a place on the page */
		} launch;
	};
};

struct mps_link { /* a direct connection to the server */
	int fd; /* -1: none */
	struct link_accept terms;
	struct link_page *page;
};

struct CUctx_st {
	CUdevice device;
	unsigned gpu;
	bool primary;
	unsigned references; /* of a primary context */
	uint64_t overhead_bytes;
	struct mps_link link;
	pthread_mutex_t lock; /* protects what follows; nothing else is locked while it is held */
	pthread_cond_t changed;
	pthread_t worker;
	struct work *first, **last;
	uint64_t submitted, completed;
	uint32_t others; /* of the submitted: is_other */
	_Atomic int error; /* a CUresult; sticks */
	bool let_go;       /* the running kernel may end as if nothing had happened */
	bool stopping;
};

struct CUfunc_st {
	const struct kernel *kernel;
};

struct CUstream_st {
	CUcontext context;
	unsigned flags;
	int priority;
	uint64_t last; /* number of the last work given to it */
	CUgraph capture; /* calls are recorded there instead; NULL: they are carried out */
	bool spoiled;    /* something that cannot be captured was asked for */
};

struct CUevent_st {
	CUcontext context; /* of the last record; NULL: never recorded */
	uint64_t number;
	uint64_t time_ns; /* 0: not reached */
};

/* init.c */
struct driver {
	bool ready;
	bool mps;
	_Atomic bool lost; /* the server has died: the next context begins anew */
	pid_t pid, server_pid; /* as the server knows us */
	struct machine_view view;
	struct mps_link link; /* context 0 */
	int next_context;
	_Atomic int doomed; /* a CUresult: no context can be had in this process any more */
};
extern struct driver driver;
CUresult driver_check(void);

/* current.c */
CUresult context_current(CUcontext *context); /* the current one if it exists and has no error */

/* context.c */
bool context_is_known(CUcontext context);
CUresult context_new(CUdevice device, bool primary, CUcontext *context);
void context_free(CUcontext context);
void context_fail(CUcontext context, int error); /* any thread; 0: the running kernel may end */
void context_fail_all(int error);
/* reports the fault to the server, of any context of this process; false: no context runs under MPS */
bool context_accuse(enum fault_class fault);
void context_bye(void); /* at exit: our going is in order */
void context_fail_on(int fd, int error); /* the context with this connection */

/* device.c */
bool device_has_uuid(const unsigned char *uuid); /* one that we may see, in bytes */

/* mps.c */
enum { MPS_ABSENT = -1 };
int mps_probe(void);                                                   /* 0, or MPS_ABSENT */
int mps_attach(int context, unsigned gpu, struct mps_link *link);     /* 0, or a CUresult */
void mps_detach(struct mps_link *link);
double mps_percent(const struct mps_link *link);
uint64_t mps_limit_bytes(const struct mps_link *link, unsigned gpu); /* 0: none */
void mps_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* listener.c */
void listener_start(void);
void listener_watch(int fd);
void listener_forget(int fd);

/* queue.c */
int queue_open(CUcontext context);
void queue_close(CUcontext context);
CUresult queue_give(CUcontext context, CUstream stream, const struct work *work);
CUresult queue_wait(CUcontext context, uint64_t number);
CUresult queue_do(const struct work *work, CUstream stream, bool wait); /* on the current context */
bool queue_sleep(CUcontext context, uint64_t ns); /* worker only; false: it was cut short */

/* page.c: the part of a context's work that its server can see */
void page_prepare(struct work *work);                          /* before it is given; no lock is held */
void page_given(CUcontext context, struct work *work);         /* under the context's lock */
void page_started(CUcontext context, const struct work *work); /* a kernel; the rest: worker only */
void page_ended(CUcontext context, const struct work *work);
void page_done(CUcontext context, const struct work *work); /* any work */
void page_wait(CUcontext context); /* while an SM exception holds the GPU; worker only */

/* graph.c */
CUresult graph_take(CUstream stream, const struct work *work); /* into what the stream captures */
CUresult stream_must_not_capture(CUstream stream);             /* else the stream's capture is spoiled; NULL means no stream */

/* module.c */
CUresult module_read(CUmodule *module, const void *image); /* no context is needed */

/* launch.c */
bool work_is_kernel(const struct work *work);

/* stream.c */
CUstream stream_named(CUstream stream); /* NULL for the default streams, by whichever handle */

/* event.c */
void event_reached(CUcontext context, struct work *work);

/* addresses.c */
enum { ADDRESS_READ = 1, ADDRESS_WRITE = 2, ADDRESS_ATOMIC = 4 }; /* the last: needs both of the others */
enum address_kind { ADDRESS_DEVICE = 1, ADDRESS_MANAGED, ADDRESS_HOST, ADDRESS_MAPPED, ADDRESS_POOL, ADDRESS_PEER };
struct address_facts {
	enum address_kind kind; /* of cuMemAlloc, ..Managed, pinned, of cuMemMap, of a pool, of another process */
	unsigned access;        /* ADDRESS_READ | ADDRESS_WRITE */
	unsigned gpu;
	uint64_t block;    /* the memory that lies there, as others may have it too; 0: it is this process's alone */
	CUcontext context; /* in which it was made; NULL: in none */
};
int address_add(CUdeviceptr base, size_t bytes, struct address_facts facts); /* overlaps none; 0, or -1: no memory */
size_t address_remove(CUdeviceptr base, enum address_kind kind, struct address_facts *facts); /* its size, or 0: no such */
size_t address_may_bytes(CUdeviceptr base, size_t bytes, unsigned access); /* how many from `base` on; at most `bytes` */
bool address_may(CUdeviceptr base, size_t bytes, unsigned access);
bool address_range(CUdeviceptr inside, CUdeviceptr *base, size_t *bytes, struct address_facts *facts); /* facts: may be NULL */
bool address_is_used(CUdeviceptr base, size_t bytes); /* any part of it, by memory that may be accessed */
void address_protect(CUdeviceptr base, size_t bytes, unsigned access); /* whole ranges */
void address_set_block(CUdeviceptr base, uint64_t block);
CUdeviceptr address_reserve(size_t bytes, size_t alignment, CUdeviceptr wish); /* 0: no room */

/* blocks.c: each takes the machine's lock */
int block_create(unsigned gpu, uint64_t bytes, uint64_t *block); /* 0, or below it; we have it once */
int block_import(int fd, unsigned *gpu, uint64_t *bytes, uint64_t *block); /* 0; below it: no memory that was exported */
int block_hold(uint64_t block);                                  /* once more, or for the first time; below 0: it has gone */
void block_drop(uint64_t block);                                 /* once less */
int block_export(uint64_t block);                                /* a descriptor, or below 0 */
bool block_map(uint64_t block, CUdeviceptr at, size_t bytes, int protection); /* over what is there */

/* memory.c */
CUresult memory_charge(CUcontext context, uint64_t bytes);
void memory_release(unsigned gpu, uint64_t bytes);
void memory_uncount(unsigned gpu, uint64_t bytes); /* of the limit alone */
CUresult memory_count(CUcontext context, uint64_t bytes);
CUresult memory_new(CUcontext context, size_t bytes, enum address_kind kind, CUdeviceptr *address);
bool memory_free(CUdeviceptr base, enum address_kind kind); /* false: no memory begins here */

/* pool.c */
CUmemoryPool pool_of(CUdeviceptr inside); /* NULL: of none */
bool pool_free(CUdeviceptr base); /* at once, and back to its pool; false: it is of none */

/* vmm_map.c */
bool vmm_is_reserved(CUdeviceptr base, size_t bytes); /* all of it, by one cuMemAddressReserve */

/* guards.c */
enum guard_kind { GUARD_NONE, GUARD_EMPTY, GUARD_SPARSE, GUARD_MANAGED };
bool guard_meets(CUdeviceptr base, size_t bytes); /* any part of it */
/* is_first: this is the first access to that page */
enum guard_kind guard_at(CUdeviceptr at, size_t bytes, size_t *here, bool *is_first);

/* access.c: what the device meets where it reads or writes; worker only */
enum extent_kind { EXTENT_BAD, EXTENT_MEMORY, EXTENT_SPARSE };
struct extent { /* as far as it is of one kind */
	enum extent_kind kind;
	size_t bytes; /* not 0 */
};
struct extent access_extent(CUcontext context, CUdeviceptr at, size_t bytes, unsigned access);
void *access_word(CUcontext context, CUdeviceptr at, unsigned access, uint64_t *nowhere); /* NULL: it faulted */

/* faults.c */
struct bad_access {
	CUdeviceptr address;
	unsigned access; /* ADDRESS_ */
	unsigned gpu;
	bool is_read_only; /* the memory is mapped, but not for writing */
	bool is_copy;      /* by the copy engine */
};
void fault_access(CUcontext context, CUdeviceptr address, unsigned access, bool is_copy); /* worker only */
void fault_memory_lost(void); /* this process's memory was overlaid: it dies */

/* coredump.c */
bool coredump_is_asked(void);                  /* by the environment; any thread */
void coredump_culprit(enum fault_class fault); /* this process is the culprit; before the server knows */
void coredump_heard(enum fault_class fault);   /* we lose our work by it; listener only: returns when the dump is there */

/* uvm_space.c */
void space_open(void);     /* in cuInit; if it fails, the process runs as on a machine without UVM */
void space_register(void); /* a context is there */
pid_t space_pid(void);     /* in the names of this process's files; 0: it made none */
bool space_is_registered(void);
bool space_meets(CUdeviceptr base, size_t bytes); /* a range that was laid from outside */
size_t space_sparse_bytes(CUdeviceptr at, size_t bytes); /* how many from `at` on are in a sparse range; at most `bytes` */
void space_report(const struct bad_access *bad);         /* to the reader of the event queue; never blocks */
void space_report_serviced(const struct bad_access *touched); /* not a fault: memory was mapped at its first access */

/* rm.c */
uint32_t rm_new_client(void); /* a handle; takes the machine's lock */

/* kernels.c */
struct kernel {
	const char *name;
	unsigned parameters;
	void (*run)(CUcontext context, const struct work *work);
	uint64_t (*needs_ns)(const struct work *work); /* NULL: next to nothing */
};
const struct kernel *kernel_find(const char *name, size_t length);
extern const struct kernel fault_kernels[], image_kernels[]; /* each ends with a nameless one */

#endif
