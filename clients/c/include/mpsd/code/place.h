/* SPDX-License-Identifier: MIT */
/* mpsd/code/place.h: memory put behind addresses: what is asked of the driver. */
#ifndef MPSD_CODE_PLACE_H
#define MPSD_CODE_PLACE_H

/* A call of the driver that failed, in words. */
static inline int mpsd_cuda_fail(struct mpsd_arena *arena, CUresult found, const char *call, uint64_t address, uint64_t bytes)
{
	return mpsd_fail(arena->session, found == CUDA_ERROR_OUT_OF_MEMORY ? -ENOMEM : -EIO, 0, (int)found,
			 "arena %s: %s of %llu bytes at 0x%llx: the driver says %d", arena->name, call,
			 (unsigned long long)bytes, (unsigned long long)address, (int)found);
}

/* The first line of /proc/self/maps that lies in [base, base + bytes), without its end; "" if the range is free. */
static inline void mpsd_what_lies_there(uint64_t base, uint64_t bytes, char *out, size_t room)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	unsigned long long from, to;
	char line[512];

	*out = '\0';
	if (!maps)
		return;
	while (!*out && fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%llx-%llx", &from, &to) == 2 && from < base + bytes && to > base) {
			line[strcspn(line, "\n")] = '\0';
			line[room - 1 < sizeof(line) ? room - 1 : sizeof(line) - 1] = '\0';
			memcpy(out, line, strlen(line) + 1);
		}
	}
	fclose(maps);
}

/* The window, at its base.  0, -EADDRINUSE, -EIO. */
static inline int mpsd_place_reserve(struct mpsd_arena *arena)
{
	CUdeviceptr got = 0;
	CUresult found = arena->driver.cuMemAddressReserve(&got, arena->window_bytes, 0, arena->base, 0);
	char line[300];

	if (found == CUDA_SUCCESS && got == arena->base) {
		arena->is_reserved = 1;
		return 0;
	}
	if (found == CUDA_SUCCESS)
		arena->driver.cuMemAddressFree(got, arena->window_bytes);
	mpsd_what_lies_there(arena->base, arena->window_bytes, line, sizeof(line));
	if (found == CUDA_SUCCESS || *line)
		return mpsd_fail(arena->session, -EADDRINUSE, 0, (int)found,
				 "arena %s: its window 0x%llx-0x%llx is not free in this process: %s", arena->name,
				 (unsigned long long)arena->base, (unsigned long long)(arena->base + arena->window_bytes),
				 *line ? line : "the driver gave another place (is the arena open twice?)");
	return mpsd_cuda_fail(arena, found, "cuMemAddressReserve", arena->base, arena->window_bytes);
}

/* The number below which descriptors may be kept: the upper half belongs to the program. */
static inline int mpsd_keep_below(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		return 0;
	return limit.rlim_cur / 2 > INT_MAX ? INT_MAX : (int)(limit.rlim_cur / 2);
}

/* Takes the descriptor, and keeps it with the item where it is below `keep_below`.  0, -EBADMSG. */
static inline int mpsd_place_import(struct mpsd_arena *arena, struct mpsd_item *item, int fd, int keep_below)
{
	CUresult found = arena->driver.cuMemImportFromShareableHandle(&item->handle, (void *)(intptr_t)fd,
								      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);

	item->kept = found == CUDA_SUCCESS && fd < keep_below ? fd : -1;
	if (item->kept < 0)
		close(fd);
	if (found == CUDA_SUCCESS)
		return 0;
	if (found == CUDA_ERROR_OUT_OF_MEMORY)
		return mpsd_cuda_fail(arena, found, "cuMemImportFromShareableHandle", arena->base + item->offset, 0);
	return mpsd_fail(arena->session, -EBADMSG, 0, (int)found,
			 "arena %s: what mpsd holds for offset 0x%llx is no memory of this GPU: cuMemImportFromShareableHandle says %d",
			 arena->name, (unsigned long long)item->offset, (int)found);
}

/* Without access yet.  0, -EBADMSG: the memory has another size; -EIO. */
static inline int mpsd_place_map(struct mpsd_arena *arena, const struct mpsd_item *item)
{
	uint64_t address = arena->base + item->offset;
	CUresult found = arena->driver.cuMemMap(address, item->bytes, 0, item->handle, 0);

	if (found == CUDA_SUCCESS)
		return 0;
	if (found == CUDA_ERROR_NOT_SUPPORTED)
		return mpsd_fail(arena->session, -EBADMSG, 0, (int)found,
				 "arena %s: the memory behind offset 0x%llx has not the %llu bytes that were said: cuMemMap says 801",
				 arena->name, (unsigned long long)item->offset, (unsigned long long)item->bytes);
	return mpsd_cuda_fail(arena, found, "cuMemMap", address, item->bytes);
}

/* ONE call, over what is mapped without a hole. */
static inline int mpsd_place_allow(struct mpsd_arena *arena, uint64_t offset, uint64_t bytes)
{
	CUmemAccessDesc access;
	CUresult found;

	memset(&access, 0, sizeof(access));
	access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	access.location.id = arena->device;
	access.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
	if (arena->access == MPSD_WRITE || arena->is_writable)
		access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	found = arena->driver.cuMemSetAccess(arena->base + offset, bytes, &access, 1);
	return found == CUDA_SUCCESS ? 0 : mpsd_cuda_fail(arena, found, "cuMemSetAccess", arena->base + offset, bytes);
}

/* All that is mapped, run by run; also what comes behind a run that fails: nothing is to stay writable for that. */
static inline int mpsd_place_allow_all(struct mpsd_arena *arena)
{
	size_t from = 0, count;
	int rc = 0, failure = 0;

	for (; (count = mpsd_space_run(arena, &from)); from += count) {
		rc = mpsd_place_allow(arena, arena->items[from].offset, mpsd_space_run_bytes(arena, from, count));
		failure = rc < 0 ? rc : failure;
	}
	return failure;
}

static inline CUresult mpsd_place_create(struct mpsd_arena *arena, uint64_t bytes, CUmemGenericAllocationHandle *handle)
{
	CUmemAllocationProp prop;

	memset(&prop, 0, sizeof(prop));
	prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	prop.location.id = arena->device;
	return arena->driver.cuMemCreate(handle, bytes, &prop, 0);
}

/* A descriptor, close-on-exec, of what was created here, or came with a descriptor that is kept; -EIO, -EMFILE. */
static inline int mpsd_place_export(struct mpsd_arena *arena, const struct mpsd_item *item)
{
	CUresult found;
	int fd = -1;

	if (item->kept >= 0) {
		fd = fcntl(item->kept, F_DUPFD_CLOEXEC, 0);
		return fd >= 0 ? fd : mpsd_fail(arena->session, -errno, 0, 0, "arena %s: no descriptor of its memory", arena->name);
	}
	found = arena->driver.cuMemExportToShareableHandle(&fd, item->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	if (found != CUDA_SUCCESS)
		return mpsd_cuda_fail(arena, found, "cuMemExportToShareableHandle", arena->base + item->offset, item->bytes);
	fcntl(fd, F_SETFD, FD_CLOEXEC);
	return fd;
}

/* Everything away, and the window. */
static inline void mpsd_place_clear(struct mpsd_arena *arena)
{
	size_t from = 0, count;

	for (; (count = mpsd_space_run(arena, &from)); from += count) {
		arena->driver.cuMemUnmap(arena->base + arena->items[from].offset, mpsd_space_run_bytes(arena, from, count));
		for (size_t i = 0; i < count; i++)
			arena->driver.cuMemRelease(arena->items[from + i].handle);
	}
	if (arena->is_reserved)
		arena->driver.cuMemAddressFree(arena->base, arena->window_bytes);
	arena->is_reserved = 0;
	while (arena->count)
		mpsd_space_remove(arena, arena->count - 1);
}

#endif
