/* See guard.h.  The layouts are native/include/mpsd_uvm.h's; where the simulator's libcuda is, its stand-in is called instead. */
#include "guard.h"

#include "../../native/include/mpsd_uvm.h"

#include <dirent.h>
#include <sys/ioctl.h>

enum { MOST_DESCRIPTORS = 16 };

union argument { /* no driver reads beyond its end */
	unsigned char room[MPSD_UVM_ARGUMENT_BYTES];
	struct mpsd_uvm_range range;
	struct mpsd_uvm_sparse sparse;
};

static int chosen = -1; /* the descriptor that has the address space; under placement.c's lock */

/* CUDA opens the device twice; only one of the two is an address space. */
static unsigned descriptors(int *out)
{
	DIR *directory = opendir("/proc/self/fd");
	struct dirent *entry;
	unsigned count = 0;
	char target[64];

	while (directory && count < MOST_DESCRIPTORS && (entry = readdir(directory))) {
		ssize_t length = readlinkat(dirfd(directory), entry->d_name, target, sizeof(target) - 1);

		target[length > 0 ? length : 0] = 0;
		if (strcmp(target, "/dev/nvidia-uvm") == 0)
			out[count++] = atoi(entry->d_name);
	}
	if (directory)
		closedir(directory);
	return count;
}

static int request(int fd, unsigned long number, union argument *argument)
{
	if (real.mpsd_sim_uvm_ioctl)
		return real.mpsd_sim_uvm_ioctl(fd, number, argument) < 0 ? -errno : 0;
	return ioctl(fd, number, argument) < 0 ? -errno : 0;
}

static int status_of(int rc, uint32_t status)
{
	if (rc < 0)
		return rc;
	return status ? -GUARD_STATUS - (int)(status & 0xffff) : 0;
}

static int create(int fd, uint64_t base, uint64_t bytes)
{
	union argument argument = { .range = { .base = base, .length = bytes, .status = MPSD_UVM_UNANSWERED } };
	int rc = request(fd, MPSD_UVM_CREATE_EXTERNAL_RANGE, &argument);

	return status_of(rc, argument.range.status);
}

/* Tried on each, until one of them is an address space. */
static int create_anywhere(uint64_t base, uint64_t bytes)
{
	int found[MOST_DESCRIPTORS], rc = -ENODEV;
	unsigned count;

	if (chosen >= 0 || real.mpsd_sim_uvm_ioctl)
		return create(chosen, base, bytes);
	count = descriptors(found);
	for (unsigned i = 0; i < count; i++) {
		rc = create(found[i], base, bytes);
		if (rc != -GUARD_STATUS - MPSD_UVM_ILLEGAL_ACTION) {
			chosen = rc == 0 ? found[i] : -1;
			return rc;
		}
	}
	return rc;
}

static int map_sparse(const CUuuid *gpu, uint64_t base, uint64_t bytes)
{
	union argument argument = { .sparse = { .base = base, .length = bytes, .status = MPSD_UVM_UNANSWERED } };
	int rc;

	memcpy(argument.sparse.gpu_uuid, gpu->bytes, sizeof(argument.sparse.gpu_uuid));
	rc = request(chosen, MPSD_UVM_MAP_EXTERNAL_SPARSE, &argument);
	return status_of(rc, argument.sparse.status);
}

/* Late drivers have no length in this structure: the status is in its place. */
static int free_range(uint64_t base, uint64_t bytes)
{
	union argument argument = { .range = { .base = base, .length = bytes, .status = MPSD_UVM_UNANSWERED } };
	int rc = request(chosen, MPSD_UVM_FREE, &argument);

	if (rc == 0 && argument.range.status == MPSD_UVM_UNANSWERED)
		return status_of(rc, (uint32_t)argument.range.length);
	return status_of(rc, argument.range.status);
}

static int lay_sparse(const CUuuid *gpu, uint64_t base, uint64_t bytes)
{
	int rc = create_anywhere(base, bytes);

	if (rc < 0)
		return rc;
	rc = map_sparse(gpu, base, bytes);
	if (rc < 0)
		free_range(base, bytes);
	return rc;
}

/* Over addresses that are the process's own: reserved with the driver, which holds them against the host's mmap. */
static int lay_managed(uint64_t base, uint64_t bytes)
{
	int rc;

	if (real.mpsd_sim_uvm_mmap)
		return real.mpsd_sim_uvm_mmap((void *)base, bytes) < 0 ? -errno : 0;
	if (chosen < 0) { /* a range shows which descriptor it is */
		rc = create_anywhere(base, bytes);
		if (rc < 0)
			return rc;
		free_range(base, bytes);
	}
	return mmap((void *)base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, chosen, (off_t)base) == MAP_FAILED ? -errno : 0;
}

int guard_lay(const CUuuid *gpu, uint64_t base, uint64_t bytes, bool is_managed)
{
	return is_managed ? lay_managed(base, bytes) : lay_sparse(gpu, base, bytes);
}

/* Unmapping removes a managed guard; the reservation takes its place again. */
int guard_lift(uint64_t base, uint64_t bytes, bool is_managed)
{
	if (!is_managed)
		return free_range(base, bytes);
	return mmap((void *)base, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED ?
		       -errno : 0;
}

const char *guard_why(int rc)
{
	static __thread char text[48];

	if (rc > -GUARD_STATUS)
		return strerror(-rc);
	snprintf(text, sizeof(text), "UVM status 0x%x", (unsigned)(-rc - GUARD_STATUS));
	return text;
}
