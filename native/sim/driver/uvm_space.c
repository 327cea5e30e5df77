/* The stand-in for /dev/nvidia-uvm: events for a reader in another process, and the ranges that it mapped into this address
 * space. */
#include "driver.h"
#include "rm_page.h"
#include "uvm_space.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { GPC = 1, CLIENT = 0x27, COPY_PAGES = 20, COPY_STEP = 64 << 10 };

static struct uvm_space *space; /* NULL: the machine does not have UVM */
static int events = -1;
static pid_t owner;
static char space_path[300], events_path[300], control_path[300], exceptions_path[300];

/* A child has the descriptors too, but the names are its parent's. */
static void unlink_at_exit(void)
{
	if (owner != getpid())
		return;
	unlink(space_path);
	unlink(events_path);
	unlink(control_path);
	unlink(exceptions_path);
}

/* Existing files of that name belonged to a dead process with the same pid. */
static int create_space(void)
{
	int fd;

	unlink(space_path);
	fd = open(space_path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	if (flock(fd, LOCK_EX | LOCK_NB) == 0 && ftruncate(fd, UVM_SPACE_BYTES) == 0)
		space = mmap(NULL, UVM_SPACE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (space && space != MAP_FAILED)
		return fd; /* the descriptor stays open: it is what others find and duplicate */
	space = NULL;
	close(fd);
	return -ENOMEM;
}

/* The number is above that of the space: the end of a process closes its descriptors in their order. */
static void create_control(int above)
{
	int fd, low;

	unlink(control_path);
	low = open(control_path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	fd = low < 0 ? -1 : fcntl(low, F_DUPFD_CLOEXEC, above + 1);
	if (fd >= 0)
		(void)flock(fd, LOCK_EX | LOCK_NB);
	if (fd >= 0 && ftruncate(fd, RM_PAGE_BYTES) == 0) {
		struct rm_page page = { .magic = RM_PAGE_MAGIC, .client = rm_new_client() };

		(void)!pwrite(fd, &page, sizeof(page), 0);
	}
	if (low >= 0)
		close(low);
}

void space_open(void)
{
	char directory[280];
	int space_fd;

	if (space)
		return;
	owner = getpid();
	snprintf(directory, sizeof(directory), "%s/uvm", machine_directory());
	snprintf(space_path, sizeof(space_path), "%s/%d.space", directory, (int)owner);
	snprintf(events_path, sizeof(events_path), "%s/%d.events", directory, (int)owner);
	snprintf(control_path, sizeof(control_path), "%s/%d.control", directory, (int)owner);
	snprintf(exceptions_path, sizeof(exceptions_path), "%s/%d.sm", directory, (int)owner);
	space_fd = create_space();
	if (space_fd < 0)
		return;
	create_control(space_fd);
	unlink(events_path);
	if (mkfifo(events_path, 0600) == 0)
		events = open(events_path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
	space->version = UVM_SPACE_VERSION;
	__atomic_store_n(&space->magic, UVM_SPACE_MAGIC, __ATOMIC_RELEASE);
	atexit(unlink_at_exit);
}

pid_t space_pid(void)
{
	return space ? owner : 0;
}

void space_register(void)
{
	if (space)
		__atomic_store_n(&space->registered, 1, __ATOMIC_RELEASE);
}

bool space_is_registered(void)
{
	return space && __atomic_load_n(&space->registered, __ATOMIC_ACQUIRE);
}

bool space_meets(CUdeviceptr at, size_t bytes)
{
	uint32_t count = space ? __atomic_load_n(&space->range_count, __ATOMIC_ACQUIRE) : 0;

	for (uint32_t i = 0; i < count && i < UVM_SPACE_RANGES; i++) {
		uint64_t base = __atomic_load_n(&space->ranges[i].base, __ATOMIC_RELAXED);
		uint64_t length = __atomic_load_n(&space->ranges[i].length, __ATOMIC_RELAXED);

		if (length && (at >= base ? at - base < length : base - at < bytes))
			return true;
	}
	return false;
}

/* The page is written by others: nothing in it is trusted. */
size_t space_sparse_bytes(CUdeviceptr at, size_t bytes)
{
	uint32_t count = space ? __atomic_load_n(&space->range_count, __ATOMIC_ACQUIRE) : 0;

	for (uint32_t i = 0; i < count && i < UVM_SPACE_RANGES; i++) {
		const struct uvm_range *range = &space->ranges[i];
		uint64_t base = __atomic_load_n(&range->base, __ATOMIC_RELAXED);
		uint64_t length = __atomic_load_n(&range->length, __ATOMIC_RELAXED);

		if (at >= base && at - base < length && __atomic_load_n(&range->is_sparse, __ATOMIC_ACQUIRE))
			return length - (at - base) < bytes ? length - (at - base) : bytes;
	}
	return 0;
}

static void put(const struct uvm_entry *entry)
{
	if (!machine_is_lost("MPSD_SIM_UVM_LOSS") && write(events, entry, sizeof(*entry)) == (ssize_t)sizeof(*entry))
		return;
	__atomic_fetch_add(&space->dropped, 1, __ATOMIC_RELAXED);
}

static struct uvm_entry entry_of(const struct bad_access *bad, enum uvm_event event)
{
	return (struct uvm_entry){
		.event = event,
		.fault = bad->is_read_only ? UVM_FAULT_WRITE : UVM_FAULT_INVALID_PDE,
		.access = bad->access & ADDRESS_ATOMIC ? UVM_ATOMIC : bad->access & ADDRESS_WRITE ? UVM_WRITE : UVM_READ,
		.processor = (uint8_t)(bad->gpu + 1),
		.reason = GPC,
		.client = event == UVM_GPU_FAULT ? CLIENT : 0,
		.address = bad->address,
		.time_ns = machine_now_ns(),
	};
}

static bool is_heard(void)
{
	return space && events >= 0 && __atomic_load_n(&space->attached, __ATOMIC_ACQUIRE);
}

void space_report_serviced(const struct bad_access *touched)
{
	struct uvm_entry entry = entry_of(touched, UVM_GPU_FAULT);

	if (is_heard())
		put(&entry);
}

/* A copy engine goes on for a while before it is stopped: it faults on page after page, on each twice. */
void space_report(const struct bad_access *bad)
{
	unsigned pages = bad->is_copy ? COPY_PAGES : 1;
	struct uvm_entry entry;

	if (!is_heard())
		return;
	for (unsigned i = 0; i < pages * (bad->is_copy ? 2 : 1); i++) {
		entry = entry_of(bad, UVM_GPU_FAULT);
		entry.address += bad->is_copy ? (uint64_t)(i / 2) * COPY_STEP : 0;
		put(&entry);
	}
	entry = entry_of(bad, UVM_FATAL_FAULT);
	put(&entry);
}
