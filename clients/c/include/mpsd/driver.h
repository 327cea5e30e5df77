/* SPDX-License-Identifier: MIT */
/*
 * mpsd/driver.h: the calls of the CUDA driver that an arena needs, by pointer: this library is not linked against libcuda.
 *
 * With MPSD_NO_CUDA_H, or without <cuda.h>, the types are declared here, as in the driver's documentation; a test compares the
 * two.
 */
#ifndef MPSD_DRIVER_H
#define MPSD_DRIVER_H

#ifdef MPSD_NO_CUDA_H
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct CUuuid_st {
	char bytes[16];
} CUuuid;
typedef enum cudaError_enum { /* the results that this library distinguishes */
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NOT_SUPPORTED = 801,
	CUDA_ERROR_UNKNOWN = 999
} CUresult;
typedef enum CUmemAllocationType_enum { CU_MEM_ALLOCATION_TYPE_PINNED = 1 } CUmemAllocationType;
typedef enum CUmemAllocationHandleType_enum {
	CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1
} CUmemAllocationHandleType;
typedef enum CUmemLocationType_enum { CU_MEM_LOCATION_TYPE_DEVICE = 1 } CUmemLocationType;
typedef enum CUmemAccess_flags_enum {
	CU_MEM_ACCESS_FLAGS_PROT_READ = 1,
	CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3
} CUmemAccess_flags;
typedef struct CUmemLocation_st {
	CUmemLocationType type;
	int id;
} CUmemLocation;
typedef struct CUmemAllocationProp_st {
	CUmemAllocationType type;
	CUmemAllocationHandleType requestedHandleTypes;
	CUmemLocation location;
	void *win32HandleMetaData;
	struct {
		unsigned char compressionType;
		unsigned char gpuDirectRDMACapable;
		unsigned short usage;
		unsigned char reserved[4];
	} allocFlags;
} CUmemAllocationProp;
typedef struct CUmemAccessDesc_st {
	CUmemLocation location;
	CUmemAccess_flags flags;
} CUmemAccessDesc;
#endif

struct mpsd_driver { /* by the names they have in the library */
	CUresult (*cuMemCreate)(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
				unsigned long long flags);
	CUresult (*cuMemRelease)(CUmemGenericAllocationHandle handle);
	CUresult (*cuMemExportToShareableHandle)(void *shareable, CUmemGenericAllocationHandle handle,
						 CUmemAllocationHandleType type, unsigned long long flags);
	CUresult (*cuMemImportFromShareableHandle)(CUmemGenericAllocationHandle *handle, void *shareable,
						   CUmemAllocationHandleType type);
	CUresult (*cuMemAddressReserve)(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr wish,
					unsigned long long flags);
	CUresult (*cuMemAddressFree)(CUdeviceptr address, size_t size);
	CUresult (*cuMemMap)(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
			     unsigned long long flags);
	CUresult (*cuMemUnmap)(CUdeviceptr address, size_t size);
	CUresult (*cuMemSetAccess)(CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t count);
	CUresult (*cuCtxGetDevice)(CUdevice *device);
	CUresult (*cuDeviceGet)(CUdevice *device, int ordinal);
	CUresult (*cuDeviceGetUuid_v2)(CUuuid *uuid, CUdevice device);
	CUresult (*cuCtxSynchronize)(void);
};

/* Finds all functions. find: like dlsym, called with `argument`; NULL: libcuda.so.1 is opened, and stays open. 0; -ENOENT:
 * libcuda.so.1 or one of the functions is missing; then *driver is unchanged. */
MPSD_API int mpsd_driver_load(struct mpsd_driver *driver, void *(*find)(void *argument, const char *name), void *argument);

#endif
