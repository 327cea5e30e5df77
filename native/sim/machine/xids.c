/* The kernel log of the fake machine: Xid events in the shared state and in the file kmsg. */
#include "machine.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { CLEARING_MS = 20 }; /* after an Xid; on an H200 17 to 280 were seen */

static uint64_t realtime_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int machine_open_log(const char *directory)
{
	char path[300];
	int fd;

	snprintf(path, sizeof(path), "%s/kmsg", directory);
	fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
	if (fd >= 0)
		(void)fchmod(fd, 0666); /* past the umask; fails for all but its owner */
	return fd;
}

/* One line in the format of /dev/kmsg: priority, sequence, microseconds since boot, flags; level and flag as the driver's
 * nv_printf() makes them, which passes KERN_CONT and no level. */
static void append_kmsg(const struct machine_xid *xid)
{
	char line[420];
	int fd = machine_open_log(machine_directory()), length;

	if (fd < 0)
		return;
	length = snprintf(line, sizeof(line), "4,%llu,%llu,c;%s\n", (unsigned long long)xid->sequence,
			  (unsigned long long)(machine_now_ns() / 1000), xid->text);
	length = write(fd, line, (size_t)length) < 0; /* a full disk loses it, as a full ring would */
	close(fd);
}

void machine_xid(unsigned gpu, unsigned code, pid_t pid, const char *text)
{
	struct machine_state *state = machine_open();
	struct machine_xid *xid;
	uint64_t sequence;

	machine_lock();
	sequence = state->next_xid++;
	xid = &state->xids[sequence % MACHINE_XIDS];
	memset(xid, 0, sizeof(*xid));
	xid->sequence = sequence;
	xid->time_ns = realtime_ns();
	xid->gpu = gpu;
	xid->code = code;
	xid->pid = pid;
	snprintf(xid->text, sizeof(xid->text), "NVRM: Xid (PCI:0000:00:%02x): %u, %s", gpu + 6, code, text);
	state->gpus[gpu].xids++;
	state->gpus[gpu].clearing_until_ns = machine_now_ns() + machine_knob("MPSD_SIM_CLEARING_MS", CLEARING_MS) * 1000000ull;
	if (!machine_is_lost("MPSD_SIM_XID_LOSS"))
		append_kmsg(xid);
	machine_unlock();
}

void machine_wait_clear(unsigned gpu)
{
	const struct machine_state *state = machine_open();
	uint64_t now = machine_now_ns(), until = state->gpus[gpu].clearing_until_ns;

	if (until > now)
		machine_sleep_ms((unsigned)((until - now + 999999) / 1000000));
}

static void name_of(pid_t pid, char *name, size_t size)
{
	char path[64];
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/comm", (int)pid);
	snprintf(name, size, "<unknown>");
	file = fopen(path, "re");
	if (!file)
		return;
	if (fgets(name, (int)size, file))
		name[strcspn(name, "\n")] = '\0';
	fclose(file);
}

void machine_xid_mmu(unsigned gpu, pid_t pid, const char *access)
{
	char text[200], name[32];

	name_of(pid, name, sizeof(name));
	snprintf(text, sizeof(text), "pid=%d, name=%s, channel 0x0000000e, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC1 GPCCLIENT_T1_6 %s",
		 (int)pid, name, access);
	machine_xid(gpu, 31, pid, text);
}

void machine_xid_exception(unsigned gpu, const char *what)
{
	char text[200];

	snprintf(text, sizeof(text), "Graphics SM Warp Exception on (GPC 1, TPC 4, SM 0): %s", what);
	machine_xid(gpu, 13, 0, text);
	machine_xid(gpu, 13, 0, "Graphics Exception: ESR 0x519730=0x503000f 0x519734=0x0 0x519728=0x1f81fb60 0x51972c=0x1174");
}

void machine_xid_channel(unsigned gpu, pid_t pid)
{
	char text[200], name[32];

	name_of(pid, name, sizeof(name));
	snprintf(text, sizeof(text), "pid=%d, name=%s, channel 0x0000000a", (int)pid, name);
	machine_xid(gpu, 43, pid, text);
}
