/* shim_found WORD... [, WORD...]...: in which library, and as which symbol, a program finds a function of CUDA, by every possible way.
 * Not linked to libcuda.
 *
 *   open NAME           dlopen libcuda.so.1, dlsym                  version NAME VERSION    dlvsym there
 *   default NAME        dlsym RTLD_DEFAULT, before and after        next NAME               dlsym RTLD_NEXT
 *   self NAME           dlopen(NULL), dlsym                         proc NAME VERSION FLAGS  cuGetProcAddress_v2
 *   again NAME          as open, after libcuda was closed once      proc1 NAME VERSION       cuGetProcAddress
 *   run                 all by cuGetProcAddress, as the static CUDA runtime has it: memory, copies, errors; prints PASS
 *   runs THREADS        the same, in as many threads at once */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int result;
typedef unsigned long long pointer;
static result (*ask)(const char *, void **, int, uint64_t, int *);

static void say(const char *how, void *found)
{
	Dl_info info;
	const char *library = NULL;

	if (found && dladdr(found, &info) && info.dli_fname)
		library = strrchr(info.dli_fname, '/');
	if (library)
		printf("%s %s %s\n", how, library + 1, info.dli_sname ? info.dli_sname : "?");
	else
		printf("%s %s\n", how, found ? "the program" : "nothing");
}

static void *open_driver(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_GLOBAL);

	if (!library) {
		puts(dlerror());
		exit(2);
	}
	return library;
}

static void *find(const char *name, int version, uint64_t flags)
{
	void *found = NULL;
	result rc = ask(name, &found, version, flags, NULL);

	return rc ? NULL : found;
}

static void start_asking(void)
{
	*(void **)&ask = dlsym(open_driver(), "cuGetProcAddress_v2");
	*(void **)&ask = find("cuGetProcAddress", 12000, 0);
}

#define CHECK(call)                                          \
	do {                                                 \
		int rc_ = (call);                            \
		if (rc_) {                                   \
			printf("%s: %d\n", #call, rc_);      \
			exit(5);                             \
		}                                            \
	} while (0)

static void *run(void *argument)
{
	enum { BYTES = 3 << 20 };
	result (*init)(unsigned), (*retain)(void **, int), (*set)(void *), (*alloc)(pointer *, size_t), (*release)(pointer);
	result (*in)(pointer, const void *, size_t), (*out)(void *, pointer, size_t), (*range)(pointer *, size_t *, pointer);
	char *here = malloc(BYTES), *back = malloc(BYTES);
	pointer memory, base;
	size_t bytes;
	void *context;

	*(void **)&init = find("cuInit", 13000, 0);
	*(void **)&retain = find("cuDevicePrimaryCtxRetain", 13000, 0);
	*(void **)&set = find("cuCtxSetCurrent", 13000, 0);
	*(void **)&alloc = find("cuMemAlloc", 13000, 0);
	*(void **)&release = find("cuMemFree", 13000, 0);
	*(void **)&in = find("cuMemcpyHtoD", 13000, 0);
	*(void **)&out = find("cuMemcpyDtoH", 13000, 0);
	*(void **)&range = find("cuMemGetAddressRange", 13000, 0);
	CHECK(init(0));
	CHECK(retain(&context, 0));
	CHECK(set(context));
	for (int i = 0; i < 20; i++) {
		memset(here, i + 1, BYTES);
		CHECK(alloc(&memory, BYTES));
		CHECK(in(memory, here, BYTES));
		CHECK(out(back, memory, BYTES));
		CHECK(memcmp(here, back, BYTES));
		CHECK(range(&base, &bytes, memory + 1000));
		CHECK(base != memory || bytes < BYTES);
		CHECK(release(memory));
		if (!argument) /* with other threads its address may be in use by now */
			CHECK(release(memory) != 1);
	}
	free(here);
	free(back);
	return NULL;
}

static void run_all(int count)
{
	pthread_t threads[64];

	start_asking();
	for (int i = 0; i < count && i < 64; i++)
		CHECK(pthread_create(&threads[i], NULL, run, count > 1 ? threads : NULL));
	for (int i = 0; i < count && i < 64; i++)
		CHECK(pthread_join(threads[i], NULL));
	puts("PASS");
}

static int find_one(int count, char **words)
{
	const char *how = count > 1 ? words[1] : "", *name = count > 2 ? words[2] : "";
	result (*ask1)(const char *, void **, int, uint64_t);
	void *found = NULL;

	if (!strcmp(how, "open"))
		say(how, dlsym(open_driver(), name));
	else if (!strcmp(how, "again")) {
		void *library = open_driver();

		dlsym(library, name);
		dlclose(library);
		say(how, dlsym(open_driver(), name));
	} else if (!strcmp(how, "version"))
		say(how, dlvsym(open_driver(), name, count > 3 ? words[3] : ""));
	else if (!strcmp(how, "default")) {
		say("before", dlsym(RTLD_DEFAULT, name));
		say("error", (void *)(uintptr_t)(dlerror() ? 0 : 1));
		open_driver();
		say("after", dlsym(RTLD_DEFAULT, name));
	} else if (!strcmp(how, "self")) {
		say("before", dlsym(dlopen(NULL, RTLD_LAZY), name));
		open_driver();
		say("after", dlsym(dlopen(NULL, RTLD_LAZY), name));
	} else if (!strcmp(how, "next")) {
		open_driver();
		say(how, dlsym(RTLD_NEXT, name));
	} else if (!strcmp(how, "proc") && count > 4) {
		start_asking();
		say(how, find(name, atoi(words[3]), (uint64_t)atoi(words[4])));
	} else if (!strcmp(how, "proc1") && count > 3) {
		*(void **)&ask1 = dlsym(open_driver(), "cuGetProcAddress");
		say(how, !ask1 || ask1(name, &found, atoi(words[3]), 0) ? NULL : found);
	} else if (!strcmp(how, "run"))
		run_all(1);
	else if (!strcmp(how, "runs"))
		run_all(atoi(name));
	else
		return 2;
	return 0;
}

int main(int count, char **words)
{
	int first = 0;

	for (int i = 1; i <= count; i++) {
		if (i < count && strcmp(words[i], ","))
			continue;
		if (find_one(i - first, words + first))
			return 2;
		first = i;
	}
	return 0;
}
