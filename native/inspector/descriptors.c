/* SPDX-License-Identifier: MIT */
/* Descriptors of another process: compared with those of the asker, found by what they are open on, duplicated. */
#include "inspector.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438 /* on every architecture */
#endif
#define KCMP_FILE 0

enum { LINKS_A_LOOK = 64 /* between two looks at the clock */ };

static char same_file(uint32_t asker, int own, uint32_t pid, int number)
{
	long found = syscall(SYS_kcmp, (pid_t)asker, (pid_t)pid, KCMP_FILE, (unsigned long)own, (unsigned long)number);

	if (found < 0 && errno != EBADF && errno != ESRCH)
		return MPSD_INSPECTOR_UNKNOWN;
	return found == 0 ? MPSD_INSPECTOR_IS_SAME : MPSD_INSPECTOR_OTHER;
}

int descriptors_compare(const struct question *question, struct reply *out)
{
	for (uint32_t i = 0; i < question->head.pairs; i++) {
		const struct mpsd_inspector_pair *pair = &question->pairs[i];

		out->payload[out->size++] = same_file(question->head.asker, pair->own, pair->pid, pair->number);
	}
	out->head.count = question->head.pairs;
	return 0;
}

static int is_device(const struct question *question)
{
	return question->head.rdev_major || question->head.rdev_minor;
}

/* Whether the link of descriptor `name` in the directory `folder` is one of the words, or its last name is. */
static int is_wanted(const struct question *question, int folder, const char *name)
{
	char link[PATH_MAX + 1];
	ssize_t size = readlinkat(folder, name, link, sizeof(link) - 1);
	const char *last;

	if (size <= 0)
		return 0;
	link[size] = '\0';
	last = strrchr(link, '/');
	return is_word(question, link, (size_t)size) || (last && is_word(question, last + 1, strlen(last + 1)));
}

static int compare_numbers(const void *a, const void *b)
{
	return *(const int *)a - *(const int *)b;
}

/* The milliseconds that this process has run; those in which others ran do not count. */
static int64_t own_ms(void)
{
	struct timespec spent;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent);
	return (int64_t)spent.tv_sec * 1000 + spent.tv_nsec / 1000000;
}

/* Find the numbers of the descriptors with the wanted links, lowest first. Returns how many, at most MPSD_INSPECTOR_PAIRS; or
 * -errno; -E2BIG if the search took too long. */
static int find_numbers(const struct question *question, int *out)
{
	char path[64];
	int count = 0, looked_at = 0;
	int64_t until = own_ms() + MPSD_INSPECTOR_FIND_MS;
	struct dirent *entry;
	DIR *folder;

	snprintf(path, sizeof(path), "/proc/%u/fd", question->head.pid);
	folder = opendir(path);
	if (!folder)
		return -errno;
	while (count >= 0 && count < MPSD_INSPECTOR_PAIRS && looked_at++ < MPSD_INSPECTOR_NUMBERS && (entry = readdir(folder))) {
		if (entry->d_name[0] != '.' && is_wanted(question, dirfd(folder), entry->d_name))
			out[count++] = atoi(entry->d_name);
		if (looked_at % LINKS_A_LOOK == 0 && own_ms() > until)
			count = -E2BIG;
	}
	closedir(folder);
	if (count < 0)
		return count;
	qsort(out, (size_t)count, sizeof(*out), compare_numbers);
	return count;
}

int descriptors_find(const struct question *question, struct reply *out)
{
	int numbers[MPSD_INSPECTOR_PAIRS] = { 0 };
	int64_t began = own_ms();
	int found = find_numbers(question, numbers);

	if (found < 0)
		return found;
	out->size = (size_t)found * sizeof(*numbers);
	memcpy(out->payload, numbers, out->size);
	out->head.count = (uint32_t)(own_ms() - began);
	return 0;
}

/* Whether the asker has it already, or it was taken by another number of the process. */
static int is_known(const struct question *question, const struct reply *out, int number)
{
	const struct mpsd_inspector_request *head = &question->head;

	for (uint32_t i = 0; i < head->pairs; i++) {
		char same = same_file(head->asker, question->pairs[i].own, head->pid, number);

		if (same == MPSD_INSPECTOR_IS_SAME)
			return 1;
		if (same == MPSD_INSPECTOR_UNKNOWN && question->pairs[i].number == number)
			return 1;
	}
	for (int i = 0; i < out->taken_count; i++)
		if (same_file((uint32_t)getpid(), out->taken[i], head->pid, number) == MPSD_INSPECTOR_IS_SAME)
			return 1;
	return 0;
}

/* Whether the descriptor taken is the one looked for. The process can have replaced it after its link was read, and mpsd must
 * not receive a file that its user can make block in close(2). */
static int is_as_wanted(const struct question *question, int taken)
{
	const struct mpsd_inspector_request *head = &question->head;
	char name[16];
	struct statx found;
	int folder, wanted;

	if (is_device(question))
		return statx(taken, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &found) == 0 && S_ISCHR(found.stx_mode) &&
		       found.stx_rdev_major == head->rdev_major && found.stx_rdev_minor == head->rdev_minor;
	folder = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (folder < 0)
		return 0;
	snprintf(name, sizeof(name), "%d", taken);
	wanted = is_wanted(question, folder, name);
	close(folder);
	return wanted;
}

int descriptors_take(const struct question *question, struct reply *out)
{
	int numbers[MPSD_INSPECTOR_PAIRS] = { 0 };
	int found = find_numbers(question, numbers);

	if (found < 0)
		return found;
	for (int i = 0; i < found && out->taken_count < MPSD_INSPECTOR_TAKEN; i++) {
		int taken;

		if (is_known(question, out, numbers[i]))
			continue;
		taken = (int)syscall(SYS_pidfd_getfd, question->passed[0], numbers[i], 0);
		if (taken < 0 && errno == EBADF)
			continue; /* closed in between */
		if (taken < 0)
			return -errno;
		if (!is_as_wanted(question, taken)) {
			close(taken);
			continue;
		}
		memcpy(out->payload + out->size, &numbers[i], sizeof(numbers[i]));
		out->size += sizeof(numbers[i]);
		out->taken[out->taken_count++] = taken;
	}
	out->head.count = (uint32_t)out->taken_count;
	return 0;
}
