/* SPDX-License-Identifier: MIT */
/* A client of mpsd's own for the self-test: it counts, or causes an SM exception.  See ../include/mpsd_sentinel.h. */
#include "sentinel.h"

#include <dlfcn.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* PTX is compiled for the GPU when it is loaded.  The simulator knows both kernels by name. */
static const char kernels[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
			      ".visible .entry count_up(.param .u64 p)\n{\n"
			      ".reg .b64 %d<3>;\n"
			      "ld.param.u64 %d1, [p];\n"
			      "atom.global.add.u64 %d2, [%d1], 1;\n"
			      "ret;\n}\n"
			      ".visible .entry trap(.param .u64 p)\n{\n"
			      "trap;\n"
			      "ret;\n}\n";

enum { NOT_FOUND = 500 /* CUresult */ };

static struct {
	int (*init)(unsigned), (*get)(int *, int), (*retain)(void **, int), (*set_current)(void *);
	int (*allocate)(uint64_t *, size_t), (*fill)(uint64_t, unsigned char, size_t), (*copy)(void *, uint64_t, size_t);
	int (*load)(void **, const void *), (*function)(void **, void *, const char *), (*wait)(void);
	int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
	uint64_t memory;
	void *kernel;
} cuda;

static int find_all(void)
{
	static const struct {
		void *to;
		const char *name;
	} wanted[] = {
		{ &cuda.init, "cuInit" }, { &cuda.get, "cuDeviceGet" }, { &cuda.retain, "cuDevicePrimaryCtxRetain" },
		{ &cuda.set_current, "cuCtxSetCurrent" }, { &cuda.allocate, "cuMemAlloc_v2" }, { &cuda.fill, "cuMemsetD8_v2" },
		{ &cuda.copy, "cuMemcpyDtoH_v2" }, { &cuda.load, "cuModuleLoadData" }, { &cuda.function, "cuModuleGetFunction" },
		{ &cuda.wait, "cuCtxSynchronize" }, { &cuda.launch, "cuLaunchKernel" },
	};
	void *library = dlopen("libcuda.so.1", RTLD_NOW), *found;

	for (size_t i = 0; library && i < sizeof(wanted) / sizeof(*wanted); i++) {
		found = dlsym(library, wanted[i].name);
		if (!found)
			return NOT_FOUND;
		memcpy(wanted[i].to, &found, sizeof(found));
	}
	return library ? 0 : NOT_FOUND;
}

static int prepare(const char *name)
{
	void *context, *module;
	int device, rc = find_all();

	if (rc || (rc = cuda.init(0)) || (rc = cuda.get(&device, 0)) || (rc = cuda.retain(&context, device)) ||
	    (rc = cuda.set_current(context)) || (rc = cuda.allocate(&cuda.memory, sizeof(uint64_t))) ||
	    (rc = cuda.fill(cuda.memory, 0, sizeof(uint64_t))) || (rc = cuda.load(&module, kernels)) ||
	    (rc = cuda.function(&cuda.kernel, module, name)))
		return rc;
	return cuda.wait();
}

static int run_kernel(void)
{
	void *parameters[] = { &cuda.memory };
	int rc = cuda.launch(cuda.kernel, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);

	return rc ? rc : cuda.wait();
}

static int say(const char *word, uint64_t number)
{
	printf("%s %llu\n", word, (unsigned long long)number);
	return fflush(stdout) ? 1 : 0;
}

static int count(void)
{
	struct pollfd input = { .fd = STDIN_FILENO, .events = POLLIN };
	uint64_t launches = 0, counted = 0;
	int rc = 0;

	while (!rc && poll(&input, 1, 0) == 0) {
		rc = run_kernel();
		if (!rc && launches++ == 0 && say("ready", 0))
			return 1;
	}
	if (rc || (rc = cuda.copy(&counted, cuda.memory, sizeof(counted))))
		return say("error", (uint64_t)rc), 1;
	return say(counted == launches ? "exact" : "wrong", counted) || counted != launches;
}

int trial_run(const char *role)
{
	bool counts = strcmp(role, "count") == 0;
	int rc = counts || strcmp(role, "trap") == 0 ? prepare(counts ? "count_up" : "trap") : -1;
	char byte;

	if (rc)
		return say("error", (uint64_t)rc), 1;
	if (counts)
		return count();
	if (say("ready", 0) || read(STDIN_FILENO, &byte, 1) != 1) /* for ever: until the test goes on, or has ended */
		return 1;
	say("error", (uint64_t)run_kernel());
	while (read(STDIN_FILENO, &byte, 1) > 0)
		;
	return 0;
}
