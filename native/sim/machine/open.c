/* Open the machine's file, take its lock, and take the locks that show which processes live. */
#include "machine.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LOCK_BYTE = 0, LIVE_BYTES = 4096 };

static pthread_mutex_t threads = PTHREAD_MUTEX_INITIALIZER; /* the file lock does not part threads */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct machine_state *state;
static char directory[256];
static int machine_fd = -1;

static int file_lock(short type, int command, off_t byte)
{
	struct flock lock = { .l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1 };
	int rc;

	do
		rc = fcntl(machine_fd, command, &lock);
	while (rc < 0 && errno == EINTR);
	if (rc < 0)
		return -errno;
	return command == F_OFD_GETLK ? lock.l_type != F_UNLCK : 0;
}

/* Other uids are on the machine too: they may write to what is here, and replace nothing. */
static bool make_folder(const char *name, mode_t mode)
{
	struct stat info;
	char path[300];

	snprintf(path, sizeof(path), "%s/%s", directory, name);
	if (mkdir(path, mode) == 0)
		(void)chmod(path, mode); /* past the umask */
	return lstat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* The default directory has a name that anyone could guess, so it must be ours. */
static bool make_directory(void)
{
	const char *chosen = getenv("MPSD_SIM_DIR");
	bool is_chosen = chosen && *chosen;
	struct stat info;

	if (is_chosen)
		snprintf(directory, sizeof(directory), "%s", chosen);
	else
		snprintf(directory, sizeof(directory), "/tmp/mpsd-sim-%u", (unsigned)getuid());
	if (mkdir(directory, 0755) == 0)
		(void)chmod(directory, 0755);
	if (lstat(directory, &info) < 0 || (!S_ISDIR(info.st_mode) && !(is_chosen && S_ISLNK(info.st_mode))))
		return false;
	errno = EPERM;
	if (!is_chosen && (info.st_uid != getuid() || info.st_mode & 022))
		return false;
	return make_folder("memory", 0777) && make_folder("uvm", 01777);
}

/* A number that stays the same for the same machine directory and GPU. */
static uint64_t made_up(const char *text, unsigned salt)
{
	uint64_t hash = 0xcbf29ce484222325u ^ salt;

	for (; *text; text++)
		hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
	hash ^= hash >> 29;
	return hash * 0x9e3779b97f4a7c15u;
}

/* The layout is that of another version, and no process uses the machine: create it again. */
static bool is_abandoned(void)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = LIVE_BYTES, .l_len = MACHINE_PROCESSES };

	return fcntl(machine_fd, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

static void create(void)
{
	unsigned long gpus = machine_knob("MPSD_SIM_GPUS", 1);

	state->version = MACHINE_VERSION;
	state->gpu_count = gpus > MACHINE_GPUS ? MACHINE_GPUS : (uint32_t)gpus;
	state->next_block = 1;
	state->next_xid = 1;
	for (unsigned i = 0; i < state->gpu_count; i++) {
		struct machine_gpu *gpu = &state->gpus[i];
		uint64_t a = made_up("mpsd simulator", i + 1);
		uint64_t b = made_up("mpsd simulator", i + 101);

		snprintf(gpu->uuid, sizeof(gpu->uuid), "GPU-%08x-%04x-%04x-%04x-%012llx", (unsigned)(a >> 32),
			 (unsigned)(a >> 16) & 0xffff, (unsigned)a & 0xffff, (unsigned)(b >> 48),
			 (unsigned long long)(b & 0xffffffffffffu));
		snprintf(gpu->name, sizeof(gpu->name), "NVIDIA H200");
		gpu->memory_bytes = (uint64_t)machine_knob("MPSD_SIM_MEMORY_MIB", MACHINE_MEMORY_MIB) << 20;
		gpu->sm_count = MACHINE_SMS;
	}
	close(machine_open_log(directory));
	state->magic = MACHINE_MAGIC;
}

static void open_once(void)
{
	char path[300];
	struct stat info;

	if (!make_directory())
		return;
	snprintf(path, sizeof(path), "%s/machine", directory);
	machine_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
	if (machine_fd < 0 || file_lock(F_WRLCK, F_OFD_SETLKW, LOCK_BYTE) < 0)
		return;
	(void)fchmod(machine_fd, 0666); /* past the umask; fails for all but its owner */
	if (fstat(machine_fd, &info) < 0 ||
	    (info.st_size < (off_t)sizeof(*state) && ftruncate(machine_fd, sizeof(*state)) < 0))
		goto out;
	state = mmap(NULL, sizeof(*state), PROT_READ | PROT_WRITE, MAP_SHARED, machine_fd, 0);
	if (state == MAP_FAILED) {
		state = NULL;
	} else if (state->magic != MACHINE_MAGIC) {
		create();
	} else if (state->version != MACHINE_VERSION && is_abandoned()) {
		memset(state, 0, sizeof(*state));
		create();
	}
	if (state && state->version != MACHINE_VERSION)
		state = NULL;
out:
	file_lock(F_UNLCK, F_OFD_SETLK, LOCK_BYTE);
	pthread_atfork(NULL, NULL, machine_forget_after_fork);
}

struct machine_state *machine_open(void)
{
	pthread_once(&once, open_once);
	return state;
}

const char *machine_directory(void)
{
	machine_open();
	return directory;
}

/* Protects all of machine_state.  Nothing that blocks may be called while it is held. */
void machine_lock(void)
{
	pthread_mutex_lock(&threads);
	file_lock(F_WRLCK, F_OFD_SETLKW, LOCK_BYTE);
}

void machine_unlock(void)
{
	file_lock(F_UNLCK, F_OFD_SETLK, LOCK_BYTE);
	pthread_mutex_unlock(&threads);
}

bool machine_slot_is_held(unsigned slot)
{
	return file_lock(F_WRLCK, F_OFD_GETLK, LIVE_BYTES + (off_t)slot) == 1;
}

int machine_slot_hold(unsigned slot)
{
	return file_lock(F_WRLCK, F_OFD_SETLK, LIVE_BYTES + (off_t)slot);
}

void machine_slot_drop(unsigned slot)
{
	file_lock(F_UNLCK, F_OFD_SETLK, LIVE_BYTES + (off_t)slot);
}

/* The child shares our descriptor's locks: were it kept, we would live as long as the child. */
void machine_forget_after_fork(void)
{
	if (machine_fd >= 0)
		close(machine_fd);
	machine_fd = -1;
	state = NULL;
}
