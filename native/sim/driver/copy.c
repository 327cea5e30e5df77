/* Copies and fills.  A bad device address is refused when it is given, or faults when it is reached. */
#include "driver.h"

#include <string.h>

static void run_copy(CUcontext context, struct work *work)
{
	CUdeviceptr to = work->copy.to, from = work->copy.from;

	memmove((void *)to, (const void *)from, work->copy.bytes);
	(void)context;
}

/* What the device reads and writes is looked at again when the copy runs. */
static void run_device_copy(CUcontext context, struct work *work)
{
	if (!address_may(work->copy.from, work->copy.bytes, ADDRESS_READ))
		fault_access(context, work->copy.from, "FAULT_PDE", "READ");
	else if (!address_may(work->copy.to, work->copy.bytes, ADDRESS_WRITE))
		fault_access(context, work->copy.to, "FAULT_PDE", "WRITE");
	else
		run_copy(context, work);
}

static void run_to_device(CUcontext context, struct work *work)
{
	if (address_may(work->copy.to, work->copy.bytes, ADDRESS_WRITE))
		run_copy(context, work);
	else
		fault_access(context, work->copy.to, "FAULT_PDE", "WRITE");
}

static void run_to_host(CUcontext context, struct work *work)
{
	if (address_may(work->copy.from, work->copy.bytes, ADDRESS_READ))
		run_copy(context, work);
	else
		fault_access(context, work->copy.from, "FAULT_PDE", "READ");
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

SIM_EXPORT CUresult cuMemcpyDtoH_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount)
{
	return copy((CUdeviceptr)dstHost, srcDevice, ByteCount, run_to_host, NULL, true);
}

SIM_EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount)
{
	return copy(dstDevice, srcDevice, ByteCount, run_device_copy, NULL, true);
}

SIM_EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount, CUstream hStream)
{
	return copy(dstDevice, (CUdeviceptr)srcHost, ByteCount, run_to_device, hStream, false);
}

SIM_EXPORT CUresult cuMemcpyDtoHAsync_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream)
{
	return copy((CUdeviceptr)dstHost, srcDevice, ByteCount, run_to_host, hStream, false);
}

SIM_EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream)
{
	return copy(dstDevice, srcDevice, ByteCount, run_device_copy, hStream, false);
}

SIM_EXPORT CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream)
{
	CUdeviceptr base;
	size_t bytes;
	bool to = address_range(dst, &base, &bytes), from = address_range(src, &base, &bytes);

	return copy(dst, src, ByteCount, to && from ? run_device_copy : to ? run_to_device : run_to_host, hStream, false);
}

SIM_EXPORT CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount)
{
	CUresult rc = cuMemcpyAsync(dst, src, ByteCount, NULL);

	return rc == CUDA_SUCCESS ? cuCtxSynchronize() : rc;
}

static void run_set(CUcontext context, struct work *work)
{
	CUdeviceptr to = work->set.to;

	if (!address_may(to, work->set.count * work->set.width, ADDRESS_WRITE)) {
		fault_access(context, to, "FAULT_PDE", "WRITE");
		return;
	}
	if (work->set.width == 1)
		memset((void *)to, (int)work->set.value, work->set.count);
	else
		for (size_t i = 0; i < work->set.count; i++)
			((uint32_t *)to)[i] = work->set.value;
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

SIM_EXPORT CUresult cuMemsetD32_v2(CUdeviceptr dstDevice, unsigned int ui, size_t N)
{
	return set(dstDevice, ui, 4, N, NULL, true);
}

SIM_EXPORT CUresult cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream hStream)
{
	return set(dstDevice, uc, 1, N, hStream, false);
}

SIM_EXPORT CUresult cuMemsetD32Async(CUdeviceptr dstDevice, unsigned int ui, size_t N, CUstream hStream)
{
	return set(dstDevice, ui, 4, N, hStream, false);
}
