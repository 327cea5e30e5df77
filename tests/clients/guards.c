/* guards WHAT [--json]: the driver's treatment of guards, ranges of UVM's laid by the process itself, where memory comes and goes.
 *
 * Each WHAT is one try in a separate process; --list prints them.  The event "found" has the result of each call: a CUresult,
 * or for UVM an NV_STATUS, or an errno.  A guard is a sparse range of UVM's ioctls 73 and 74, or managed memory: the UVM
 * descriptor mapped at its own address.  Prose: docs/shim.md. */
#include "client.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#define WINDOW 0x4f0000000000ull
#define PROBE 0x4e0000000000ull

enum { UVM_FREE = 34, UVM_CREATE_EXTERNAL_RANGE = 73, UVM_MAP_EXTERNAL_SPARSE = 74, UNANSWERED = 0xffff };
enum { MIB = 1 << 20, PIECE = 4 * MIB, AT = 8 * MIB, WINDOW_BYTES = 64 * MIB, DESCRIPTORS = 1024, ROOM = 1024 };

struct uvm_range { /* of 73 and 34 */
	uint64_t base, length;
	uint32_t status, reserved;
	uint64_t room[5];
};

struct uvm_sparse {
	uint64_t base, length;
	CUuuid gpu;
	uint32_t status, reserved;
	uint64_t room[3];
};

struct lab {
	struct client client;
	CUuuid gpu;
	int uvm;
	int (*simulated)(int fd, unsigned long number, void *argument); /* NULL: a real driver */
	int (*simulated_mmap)(void *address, size_t bytes);
	CUdeviceptr window;
	CUmemGenericAllocationHandle memory; /* of PIECE */
	char found[ROOM];
	size_t used;
	unsigned uses;
};

/* One more member of what was found; what happens a second time has another name. */
static void note(struct lab *lab, const char *what, long value)
{
	char name[64];
	int wrote;

	snprintf(name, sizeof(name), "\"%s\"", what);
	if (strstr(lab->found, name))
		snprintf(name, sizeof(name), "\"%s_again\"", what);
	wrote = snprintf(lab->found + lab->used, ROOM - lab->used, "%s%s: %ld", lab->used ? ", " : "", name, value);

	lab->used += wrote > 0 && (size_t)wrote < ROOM - lab->used ? (size_t)wrote : 0;
}

static int uvm_ioctl(struct lab *lab, int fd, unsigned long number, void *argument)
{
	return lab->simulated ? lab->simulated(fd, number, argument) : ioctl(fd, number, argument) ? -errno : 0;
}

/* An NV_STATUS; negative: -errno. */
static long create_range(struct lab *lab, int fd, CUdeviceptr base, uint64_t length)
{
	struct uvm_range range = { .base = base, .length = length, .status = UNANSWERED };
	int rc = uvm_ioctl(lab, fd, UVM_CREATE_EXTERNAL_RANGE, &range);

	return rc < 0 ? rc : (long)range.status;
}

static long free_range(struct lab *lab, int fd, CUdeviceptr base, uint64_t length)
{
	struct uvm_range range = { .base = base, .length = length, .status = UNANSWERED };
	int rc = uvm_ioctl(lab, fd, UVM_FREE, &range);

	return rc < 0 ? rc : (long)range.status;
}

static long lay(struct lab *lab, CUdeviceptr base, uint64_t length)
{
	struct uvm_sparse sparse = { .base = base, .length = length, .gpu = lab->gpu, .status = UNANSWERED };
	long status = create_range(lab, lab->uvm, base, length);
	int rc;

	if (status)
		return status;
	rc = uvm_ioctl(lab, lab->uvm, UVM_MAP_EXTERNAL_SPARSE, &sparse);
	return rc < 0 ? rc : (long)sparse.status;
}

/* The descriptor that is the address space: the other one of each process answers with an error. */
static void find_uvm(struct lab *lab)
{
	char path[64], name[64];

	*(void **)&lab->simulated = dlsym(RTLD_DEFAULT, "mpsd_sim_uvm_ioctl");
	*(void **)&lab->simulated_mmap = dlsym(RTLD_DEFAULT, "mpsd_sim_uvm_mmap");
	lab->uvm = -1;
	for (int fd = 3; fd < DESCRIPTORS && !lab->simulated; fd++) {
		ssize_t length;

		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		length = readlink(path, name, sizeof(name) - 1);
		if (length <= 0)
			continue;
		name[length] = 0;
		if (strcmp(name, "/dev/nvidia-uvm") != 0 || create_range(lab, fd, PROBE, 65536))
			continue;
		free_range(lab, fd, PROBE, 65536);
		lab->uvm = fd;
		return;
	}
}

static CUmemAllocationProp on_device(void)
{
	CUmemAllocationProp prop;

	memset(&prop, 0, sizeof(prop));
	prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	return prop;
}

static void prepare(struct lab *lab)
{
	CUmemAllocationProp prop = on_device();

	client_start(&lab->client);
	CLIENT_CHECK(&lab->client, cuDeviceGetUuid(&lab->gpu, lab->client.device), EXIT_START);
	CLIENT_CHECK(&lab->client, cuMemCreate(&lab->memory, PIECE, &prop, 0), EXIT_START);
	find_uvm(lab);
	if (lab->uvm < 0 && !lab->simulated)
		client_fail(&lab->client, "no UVM descriptor(", CUDA_ERROR_NOT_FOUND, EXIT_START);
}

static void reserve(struct lab *lab)
{
	CUresult rc = cuMemAddressReserve(&lab->window, WINDOW_BYTES, 0, WINDOW, 0);

	note(lab, "reserve", rc);
	note(lab, "is_where_asked", rc == CUDA_SUCCESS && lab->window == WINDOW);
	if (rc == CUDA_SUCCESS && lab->window != WINDOW)
		note(lab, "is_at_mib", (long)(lab->window >> 20));
	if (rc != CUDA_SUCCESS)
		lab->window = WINDOW;
}

static CUresult map(struct lab *lab, CUdeviceptr at)
{
	return cuMemMap(at, PIECE, 0, lab->memory, 0);
}

static CUresult allow(CUdeviceptr at)
{
	CUmemAccessDesc access = { .location = on_device().location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };

	return cuMemSetAccess(at, PIECE, &access, 1);
}

/* A kernel writes a word, the host reads it: whether it is memory, or what swallows everything.  Each time another word: what
 * was written before may still be read. */
static void use(struct lab *lab, CUdeviceptr piece)
{
	CUdeviceptr at = piece + 8 * lab->uses++;
	void *parameters[] = { &at };
	uint64_t word = 0;
	uint64_t began = client_now_ns();
	CUresult rc = client_launch(client_kernel(&lab->client, "use_after_free"), 1, 1, parameters); /* it writes its parameter */

	rc = rc == CUDA_SUCCESS ? cuCtxSynchronize() : rc;
	note(lab, "write", rc);
	note(lab, "write_us", (long)(client_ms_since(began) * 1e3));
	rc = rc == CUDA_SUCCESS ? cuMemcpyDtoH(&word, at, sizeof(word)) : rc;
	note(lab, "is_memory", rc == CUDA_SUCCESS && word == at);
}

static void map_and_use(struct lab *lab, CUdeviceptr at)
{
	CUresult rc = map(lab, at);

	note(lab, "map", rc);
	rc = allow(at);
	note(lab, "access", rc);
	if (rc == CUDA_SUCCESS)
		use(lab, at);
}

static long lay_managed(struct lab *lab, CUdeviceptr at, uint64_t length)
{
	if (lab->simulated)
		return lab->simulated_mmap((void *)at, length) ? -errno : 0;
	return mmap((void *)at, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, lab->uvm, (off_t)at) == MAP_FAILED ? -errno : 0;
}

static void *put_aside(CUdeviceptr at, uint64_t length)
{
	return mmap((void *)at, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

static void over_sparse(struct lab *lab)
{
	reserve(lab);
	note(lab, "guard", lay(lab, lab->window + AT, PIECE));
	map_and_use(lab, lab->window + AT);
}

static void over_part(struct lab *lab)
{
	reserve(lab);
	note(lab, "guard", lay(lab, lab->window + AT + PIECE / 2, PIECE));
	map_and_use(lab, lab->window + AT);
}

static void access_over_sparse(struct lab *lab)
{
	CUresult rc;

	reserve(lab);
	note(lab, "map", map(lab, lab->window + AT));
	note(lab, "guard", lay(lab, lab->window + AT, PIECE));
	rc = allow(lab->window + AT);
	note(lab, "access", rc);
	if (rc == CUDA_SUCCESS)
		use(lab, lab->window + AT);
}

static void over_memory(struct lab *lab)
{
	reserve(lab);
	map_and_use(lab, lab->window + AT);
	note(lab, "guard", lay(lab, lab->window + AT, PIECE));
	use(lab, lab->window + AT);
}

static void freed_guard(struct lab *lab)
{
	reserve(lab);
	note(lab, "guard", lay(lab, lab->window + AT, PIECE));
	note(lab, "free", free_range(lab, lab->uvm, lab->window + AT, PIECE));
	map_and_use(lab, lab->window + AT);
}

static void part_freed(struct lab *lab)
{
	reserve(lab);
	note(lab, "guard", lay(lab, lab->window + AT, 2 * PIECE));
	note(lab, "free", free_range(lab, lab->uvm, lab->window + AT, PIECE));
	map_and_use(lab, lab->window + AT);
}

static void after_unmap(struct lab *lab)
{
	reserve(lab);
	map_and_use(lab, lab->window + AT);
	note(lab, "unmap", cuMemUnmap(lab->window + AT, PIECE));
	note(lab, "guard", lay(lab, lab->window + AT, PIECE));
	use(lab, lab->window + AT);
	note(lab, "free", free_range(lab, lab->uvm, lab->window + AT, PIECE));
	map_and_use(lab, lab->window + AT);
}

static void over_managed(struct lab *lab)
{
	reserve(lab);
	note(lab, "guard", lay_managed(lab, lab->window + AT, PIECE));
	map_and_use(lab, lab->window + AT);
}

static void managed_written(struct lab *lab)
{
	reserve(lab);
	note(lab, "guard", lay_managed(lab, lab->window + AT, PIECE));
	use(lab, lab->window + AT);
	note(lab, "munmap", munmap((void *)(lab->window + AT), PIECE) ? -errno : 0);
	note(lab, "aside", put_aside(lab->window + AT, PIECE) == MAP_FAILED ? -errno : 0);
	map_and_use(lab, lab->window + AT);
}

static void managed_unmapped(struct lab *lab)
{
	reserve(lab);
	note(lab, "guard", lay_managed(lab, lab->window + AT, PIECE));
	note(lab, "munmap", munmap((void *)(lab->window + AT), PIECE) ? -errno : 0);
	map_and_use(lab, lab->window + AT);
}

static void managed_replaced(struct lab *lab)
{
	reserve(lab);
	note(lab, "guard", lay_managed(lab, lab->window + AT, PIECE));
	note(lab, "aside", put_aside(lab->window + AT, PIECE) == MAP_FAILED ? -errno : 0);
	map_and_use(lab, lab->window + AT);
}

static void window_freed(struct lab *lab)
{
	reserve(lab);
	note(lab, "guard", lay(lab, lab->window + AT, PIECE));
	note(lab, "window_free", cuMemAddressFree(lab->window, WINDOW_BYTES));
	reserve(lab);
	map_and_use(lab, lab->window + AT);
}

static void host_page(struct lab *lab)
{
	void *page = mmap((void *)(WINDOW + AT), 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);

	note(lab, "mmap", page == MAP_FAILED ? -errno : 0);
	reserve(lab);
}

static void host_reserved(struct lab *lab)
{
	note(lab, "mmap", put_aside(WINDOW, WINDOW_BYTES) == MAP_FAILED ? -errno : 0);
	reserve(lab);
}

static void reserved_twice(struct lab *lab)
{
	reserve(lab);
	reserve(lab);
}

static const struct {
	const char *name;
	void (*run)(struct lab *lab);
} tries[] = {
	{ "over_sparse", over_sparse },		{ "over_part", over_part },
	{ "access_over_sparse", access_over_sparse }, { "over_memory", over_memory },
	{ "freed_guard", freed_guard },		{ "part_freed", part_freed },
	{ "after_unmap", after_unmap },		{ "window_freed", window_freed },
	{ "over_managed", over_managed },	{ "managed_written", managed_written },
	{ "managed_unmapped", managed_unmapped }, { "managed_replaced", managed_replaced },
	{ "host_page", host_page },		{ "host_reserved", host_reserved },
	{ "reserved_twice", reserved_twice },
};

int main(int argc, char **argv)
{
	struct lab lab = { 0 };
	size_t at = 0, count = sizeof(tries) / sizeof(*tries);

	client_options(&lab.client, "guards", &argc, argv);
	if (argc == 2 && strcmp(argv[1], "--list") == 0) {
		for (size_t i = 0; i < count; i++)
			printf("%s\n", tries[i].name);
		return 0;
	}
	while (argc == 2 && at < count && strcmp(tries[at].name, argv[1]) != 0)
		at++;
	if (argc != 2 || at == count)
		client_usage("guards WHAT [--json]; guards --list");
	prepare(&lab);
	tries[at].run(&lab);
	client_say(&lab.client, "found", "%s: %s", "\"what\": \"%s\", %s", tries[at].name, lab.found);
	return 0;
}
