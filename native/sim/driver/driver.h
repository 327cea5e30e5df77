/* The fake CUDA driver: its objects, and what its files offer each other.
 *
 * A context has one worker thread (queue.c) that does its work in order; a process under MPS has
 * one more thread (listener.c) that hears what its server says.  Prose: docs/simulator.md.
 */
#ifndef MPSD_SIM_DRIVER_H
#define MPSD_SIM_DRIVER_H

#include "cuda.h"
#include "link.h"

#include <pthread.h>

#define SIM_EXPORT __attribute__((visibility("default")))

enum { DRIVER_DEVICES = MACHINE_GPUS, DRIVER_LINKS = 128, DRIVER_CONTEXT_MIB = 516 };

struct work { /* one item of a context's queue */
	struct work *next;
	void (*run)(CUcontext context, struct work *work);
	uint64_t number; /* from 1, per context */
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
	_Atomic int error; /* a CUresult; sticks */
	bool let_go;       /* the running kernel may end as if nothing had happened */
	bool stopping;
};

struct CUstream_st {
	CUcontext context;
	uint64_t last; /* number of the last work given to it */
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
CUresult context_current(CUcontext *context); /* the current one if it is there and has no error */

/* context.c */
bool context_is_known(CUcontext context);
CUresult context_new(CUdevice device, bool primary, CUcontext *context);
void context_free(CUcontext context);
void context_fail(CUcontext context, int error); /* any thread; 0: the running kernel may end */
void context_fail_all(int error);
void context_bye(void); /* at exit: our going is in order */
void context_fail_on(int fd, int error); /* the one whose connection it is */

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

/* event.c */
void event_reached(CUcontext context, struct work *work);

/* addresses.c */
enum { ADDRESS_READ = 1, ADDRESS_WRITE = 2, ADDRESS_ATOMIC = 4 }; /* the last: needs both of the others */
int address_add(CUdeviceptr base, size_t bytes, unsigned access, unsigned gpu);
size_t address_remove(CUdeviceptr base, unsigned *gpu); /* its size, or 0 */
size_t address_may_bytes(CUdeviceptr base, size_t bytes, unsigned access); /* how many from `base` on; at most `bytes` */
bool address_may(CUdeviceptr base, size_t bytes, unsigned access);
bool address_range(CUdeviceptr inside, CUdeviceptr *base, size_t *bytes);
void address_protect(CUdeviceptr base, size_t bytes, unsigned access);
CUdeviceptr address_reserve(size_t bytes, CUdeviceptr wish); /* 0: no room */
bool address_is_reserved(CUdeviceptr address); /* vmm.c: by cuMemAddressReserve */

/* memory.c */
CUresult memory_charge(CUcontext context, uint64_t bytes);
void memory_release(unsigned gpu, uint64_t bytes);
void memory_uncount(unsigned gpu, uint64_t bytes); /* of the limit alone */
CUresult memory_count(CUcontext context, uint64_t bytes);

/* access.c: what the device meets where it reads or writes; worker only */
enum extent_kind { EXTENT_BAD, EXTENT_MEMORY, EXTENT_SPARSE };
struct extent { /* as far as it is of one kind */
	enum extent_kind kind;
	size_t bytes; /* not 0 */
};
struct extent access_extent(CUdeviceptr at, size_t bytes, unsigned access);
void *access_word(CUcontext context, CUdeviceptr at, unsigned access, uint64_t *nowhere); /* NULL: it faulted */

/* faults.c */
struct bad_access {
	CUdeviceptr address;
	unsigned access; /* ADDRESS_ */
	unsigned gpu;
	bool is_read_only; /* there is memory, but not for writing */
	bool is_copy;      /* by the copy engine */
};
void fault_access(CUcontext context, CUdeviceptr address, unsigned access, bool is_copy); /* worker only */

/* coredump.c */
bool coredump_is_asked(void);                  /* by the environment; any thread */
void coredump_culprit(enum fault_class fault); /* we do it now; before the server is told */
void coredump_heard(enum fault_class fault);   /* we lose our work by it; listener only: returns when the dump is there */

/* uvm_space.c */
void space_open(void);     /* in cuInit; without it all goes on as on a machine that has no UVM */
void space_register(void); /* a context is there */
pid_t space_pid(void);     /* in the names of our files; 0: there are none */
size_t space_sparse_bytes(CUdeviceptr at, size_t bytes); /* how many from `at` on are in a sparse range; at most `bytes` */
void space_report(const struct bad_access *bad);         /* to whoever listens; never blocks */

/* kernels.c */
struct kernel {
	const char *name;
	unsigned parameters;
	void (*run)(CUcontext context, const struct work *work);
	uint64_t (*needs_ns)(const struct work *work); /* NULL: next to nothing */
};
const struct kernel *kernel_find(const char *name, size_t length);
extern const struct kernel fault_kernels[]; /* ends with a nameless one */

#endif
