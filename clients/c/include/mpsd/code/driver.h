/* SPDX-License-Identifier: MIT */
/* mpsd/code/driver.h: finding the driver's calls. */
#ifndef MPSD_CODE_DRIVER_H
#define MPSD_CODE_DRIVER_H

static inline void *mpsd_driver_find(void *library, const char *name)
{
	return dlsym(library, name);
}

MPSD_API int mpsd_driver_load(struct mpsd_driver *driver, void *(*find)(void *argument, const char *name), void *argument)
{
	static const struct {
		const char *name;
		size_t offset;
	} calls[] = {
		{ "cuMemCreate", offsetof(struct mpsd_driver, cuMemCreate) },
		{ "cuMemRelease", offsetof(struct mpsd_driver, cuMemRelease) },
		{ "cuMemExportToShareableHandle", offsetof(struct mpsd_driver, cuMemExportToShareableHandle) },
		{ "cuMemImportFromShareableHandle", offsetof(struct mpsd_driver, cuMemImportFromShareableHandle) },
		{ "cuMemAddressReserve", offsetof(struct mpsd_driver, cuMemAddressReserve) },
		{ "cuMemAddressFree", offsetof(struct mpsd_driver, cuMemAddressFree) },
		{ "cuMemMap", offsetof(struct mpsd_driver, cuMemMap) },
		{ "cuMemUnmap", offsetof(struct mpsd_driver, cuMemUnmap) },
		{ "cuMemSetAccess", offsetof(struct mpsd_driver, cuMemSetAccess) },
		{ "cuCtxGetDevice", offsetof(struct mpsd_driver, cuCtxGetDevice) },
		{ "cuDeviceGet", offsetof(struct mpsd_driver, cuDeviceGet) },
		{ "cuDeviceGetUuid_v2", offsetof(struct mpsd_driver, cuDeviceGetUuid_v2) },
		{ "cuCtxSynchronize", offsetof(struct mpsd_driver, cuCtxSynchronize) },
	};
	struct mpsd_driver made;
	void *call;

	if (!find) {
		argument = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
		find = mpsd_driver_find;
		if (!argument)
			return -ENOENT;
	}
	memset(&made, 0, sizeof(made));
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		call = find(argument, calls[i].name);
		if (!call)
			return -ENOENT;
		memcpy((char *)&made + calls[i].offset, &call, sizeof(call));
	}
	*driver = made;
	return 0;
}

#endif
