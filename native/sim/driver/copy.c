/* Copies and fills.  A bad device address is refused when it is given, or faults when it is reached. */
#include "driver.h"

#include <string.h>

static struct extent extent_of(CUcontext context, CUdeviceptr at, size_t bytes, unsigned access, bool is_device)
{
	return is_device ? access_extent(context, at, bytes, access) : (struct extent){ EXTENT_MEMORY, bytes };
}

/* The addresses that the device reads and writes are checked again when the copy runs. */
static void move(CUcontext context, CUdeviceptr to, CUdeviceptr from, size_t bytes, bool to_device, bool from_device)
{
	while (bytes) {
		struct extent source = extent_of(context, from, bytes, ADDRESS_READ, from_device);
		struct extent target = extent_of(context, to, bytes, ADDRESS_WRITE, to_device);
		size_t step = source.bytes < target.bytes ? source.bytes : target.bytes;

		if (source.kind == EXTENT_BAD || target.kind == EXTENT_BAD) {
			fault_access(context, source.kind == EXTENT_BAD ? from : to,
				     source.kind == EXTENT_BAD ? ADDRESS_READ : ADDRESS_WRITE, true);
			return;
		}
		if (target.kind == EXTENT_MEMORY && source.kind == EXTENT_MEMORY)
			memmove((void *)to, (const void *)from, step);
		else if (target.kind == EXTENT_MEMORY)
			memset((void *)to, 0, step);
		to += step;
		from += step;
		bytes -= step;
	}
}

static void run_device_copy(CUcontext context, struct work *work)
{
	move(context, work->copy.to, work->copy.from, work->copy.bytes, true, true);
}

static void run_to_device(CUcontext context, struct work *work)
{
	move(context, work->copy.to, work->copy.from, work->copy.bytes, true, false);
}

static void run_to_host(CUcontext context, struct work *work)
{
	move(context, work->copy.to, work->copy.from, work->copy.bytes, false, true);
}

static CUresult copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, void (*run)(CUcontext, struct work *), CUstream stream,
		     bool wait)
{
	struct work work = { .run = run, .copy = { to, from, bytes } };
	CUcontext context;
	CUresult rc = context_current(&context);

	if (rc != CUDA_SUCCESS || !bytes)
		return rc;
	if (run != run_to_host && !address_may(to, bytes, ADDRESS_WRITE))
		return CUDA_ERROR_INVALID_VALUE;
	if (run != run_to_device && !address_may(from, bytes, ADDRESS_READ))
		return CUDA_ERROR_INVALID_VALUE;
	return queue_do(&work, stream, wait);
}

SIM_EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount)
{
	return copy(dstDevice, (CUdeviceptr)srcHost, ByteCount, run_to_device, NULL, true);
}
SIM_PER_THREAD(cuMemcpyHtoD_v2, _ptds);

SIM_EXPORT CUresult cuMemcpyDtoH_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount)
{
	return copy((CUdeviceptr)dstHost, srcDevice, ByteCount, run_to_host, NULL, true);
}
SIM_PER_THREAD(cuMemcpyDtoH_v2, _ptds);

SIM_EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount)
{
	return copy(dstDevice, srcDevice, ByteCount, run_device_copy, NULL, true);
}
SIM_PER_THREAD(cuMemcpyDtoD_v2, _ptds);

SIM_EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount, CUstream hStream)
{
	return copy(dstDevice, (CUdeviceptr)srcHost, ByteCount, run_to_device, hStream, false);
}
SIM_PER_THREAD(cuMemcpyHtoDAsync_v2, _ptsz);

SIM_EXPORT CUresult cuMemcpyDtoHAsync_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream)
{
	return copy((CUdeviceptr)dstHost, srcDevice, ByteCount, run_to_host, hStream, false);
}
SIM_PER_THREAD(cuMemcpyDtoHAsync_v2, _ptsz);

SIM_EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream)
{
	return copy(dstDevice, srcDevice, ByteCount, run_device_copy, hStream, false);
}
SIM_PER_THREAD(cuMemcpyDtoDAsync_v2, _ptsz);

SIM_EXPORT CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream)
{
	CUdeviceptr base;
	size_t bytes;
	bool to = address_range(dst, &base, &bytes, NULL), from = address_range(src, &base, &bytes, NULL);

	return copy(dst, src, ByteCount, to && from ? run_device_copy : to ? run_to_device : run_to_host, hStream, false);
}
SIM_PER_THREAD(cuMemcpyAsync, _ptsz);

SIM_EXPORT CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount)
{
	CUresult rc = cuMemcpyAsync(dst, src, ByteCount, NULL);

	return rc == CUDA_SUCCESS ? cuCtxSynchronize() : rc;
}
SIM_PER_THREAD(cuMemcpy, _ptds);

static void run_set(CUcontext context, struct work *work)
{
	CUdeviceptr to = work->set.to;

	for (size_t left = work->set.count * work->set.width, step; left; left -= step, to += step) {
		struct extent extent = access_extent(context, to, left, ADDRESS_WRITE);

		if (extent.kind == EXTENT_BAD) {
			fault_access(context, to, ADDRESS_WRITE, false);
			return;
		}
		step = extent.bytes; /* a whole number of elements: all ranges begin and end on pages */
		if (extent.kind == EXTENT_MEMORY && work->set.width == 1)
			memset((void *)to, (int)work->set.value, step);
		else if (extent.kind == EXTENT_MEMORY)
			for (size_t i = 0; i < step / 4; i++)
				((uint32_t *)to)[i] = work->set.value;
	}
}

static CUresult set(CUdeviceptr to, uint32_t value, unsigned width, size_t count, CUstream stream, bool wait)
{
	struct work work = { .run = run_set, .set = { to, count, value, width } };

	if (count && (to % width || !address_may(to, count * width, ADDRESS_WRITE)))
		return CUDA_ERROR_INVALID_VALUE;
	return queue_do(&work, stream, wait);
}

SIM_EXPORT CUresult cuMemsetD8_v2(CUdeviceptr dstDevice, unsigned char uc, size_t N)
{
	return set(dstDevice, uc, 1, N, NULL, true);
}
SIM_PER_THREAD(cuMemsetD8_v2, _ptds);

SIM_EXPORT CUresult cuMemsetD32_v2(CUdeviceptr dstDevice, unsigned int ui, size_t N)
{
	return set(dstDevice, ui, 4, N, NULL, true);
}
SIM_PER_THREAD(cuMemsetD32_v2, _ptds);

SIM_EXPORT CUresult cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream hStream)
{
	return set(dstDevice, uc, 1, N, hStream, false);
}
SIM_PER_THREAD(cuMemsetD8Async, _ptsz);

SIM_EXPORT CUresult cuMemsetD32Async(CUdeviceptr dstDevice, unsigned int ui, size_t N, CUstream hStream)
{
	return set(dstDevice, ui, 4, N, hStream, false);
}
SIM_PER_THREAD(cuMemsetD32Async, _ptsz);
