/* The names of CUDA's errors. */
#include "driver.h"

#define NAME(error, text) { error, #error, text }

static const struct {
	CUresult error;
	const char *name, *text;
} names[] = {
	NAME(CUDA_SUCCESS, "no error"),
	NAME(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
	NAME(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
	NAME(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
	NAME(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
	NAME(CUDA_ERROR_STUB_LIBRARY, "CUDA driver is a stub library"),
	NAME(CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA-capable device(s) is/are busy or unavailable"),
	NAME(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
	NAME(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
	NAME(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
	NAME(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
	NAME(CUDA_ERROR_MAP_FAILED, "mapping of buffer object failed"),
	NAME(CUDA_ERROR_ALREADY_MAPPED, "resource already mapped"),
	NAME(CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed"),
	NAME(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
	NAME(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state"),
	NAME(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
	NAME(CUDA_ERROR_NOT_READY, "device not ready"),
	NAME(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
	NAME(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch"),
	NAME(CUDA_ERROR_LAUNCH_TIMEOUT, "the launch timed out and was terminated"),
	NAME(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "cannot set while device is active in this process"),
	NAME(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
	NAME(CUDA_ERROR_ASSERT, "device-side assert triggered"),
	NAME(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "part or all of the requested memory range is already mapped"),
	NAME(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "pointer does not correspond to a registered memory region"),
	NAME(CUDA_ERROR_HARDWARE_STACK_ERROR, "hardware stack error"),
	NAME(CUDA_ERROR_ILLEGAL_INSTRUCTION, "an illegal instruction was encountered"),
	NAME(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address"),
	NAME(CUDA_ERROR_INVALID_ADDRESS_SPACE, "operation not supported on global/shared address space"),
	NAME(CUDA_ERROR_INVALID_PC, "invalid program counter"),
	NAME(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
	NAME(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
	NAME(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
	NAME(CUDA_ERROR_MPS_CONNECTION_FAILED, "MPS client failed to connect to the MPS control daemon or the MPS server"),
	NAME(CUDA_ERROR_MPS_RPC_FAILURE, "the remote procedural call between the MPS server and the MPS client failed"),
	NAME(CUDA_ERROR_MPS_SERVER_NOT_READY, "MPS server is not ready to accept new MPS client requests"),
	NAME(CUDA_ERROR_MPS_MAX_CLIENTS_REACHED, "the hardware resources required to create MPS client have been exhausted"),
	NAME(CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED, "the hardware resources required to support device connections have been exhausted"),
	NAME(CUDA_ERROR_MPS_CLIENT_TERMINATED, "the MPS client has been terminated by the server"),
	NAME(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"),
	NAME(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture"),
	NAME(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, "invalid resource configuration"),
	NAME(CUDA_ERROR_UNKNOWN, "unknown error"),
};

SIM_EXPORT CUresult cuGetErrorName(CUresult error, const char **pStr)
{
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		if (names[i].error == error) {
			*pStr = names[i].name;
			return CUDA_SUCCESS;
		}
	*pStr = NULL;
	return CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORT CUresult cuGetErrorString(CUresult error, const char **pStr)
{
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		if (names[i].error == error) {
			*pStr = names[i].text;
			return CUDA_SUCCESS;
		}
	*pStr = NULL;
	return CUDA_ERROR_INVALID_VALUE;
}
