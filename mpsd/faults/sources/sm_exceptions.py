"""Exceptions of SMs, as CUDA's debugger interface numbers and names them.

CUDBGException_t of CUDA 13.1's cudadebugger.h, and of CUDA 12's for numbers that 13.1 calls reserved.
"""

TRAP = 0  # not NVIDIA's: a warp that stopped without an exception
UNKNOWN_EXCEPTION = 0xFFFFFFFF
EXCEPTIONS = {
    TRAP: "TRAP",
    1: "LANE_ILLEGAL_ADDRESS",
    2: "LANE_USER_STACK_OVERFLOW",
    3: "DEVICE_HARDWARE_STACK_OVERFLOW",
    4: "WARP_ILLEGAL_INSTRUCTION",
    5: "WARP_OUT_OF_RANGE_ADDRESS",
    6: "WARP_MISALIGNED_ADDRESS",
    7: "WARP_INVALID_ADDRESS_SPACE",
    8: "WARP_INVALID_PC",
    9: "WARP_HARDWARE_STACK_OVERFLOW",
    10: "DEVICE_ILLEGAL_ADDRESS",
    11: "LANE_MISALIGNED_ADDRESS",
    12: "WARP_ASSERT",
    13: "LANE_SYSCALL_ERROR",
    14: "WARP_ILLEGAL_ADDRESS",
    15: "LANE_NONMIGRATABLE_ATOMSYS",
    16: "LANE_INVALID_ATOMSYS",
    17: "CLUSTER_OUT_OF_RANGE_ADDRESS",
    18: "CLUSTER_BLOCK_NOT_PRESENT",
    19: "WARP_STACK_CANARY",
    20: "WARP_TMEM_ACCESS_CHECK",
    21: "WARP_TMEM_LEAK",
    22: "WARP_CALL_REQUIRES_NEWER_DRIVER",
    23: "WARP_MISALIGNED_PC",
    24: "WARP_PC_OVERFLOW",
    25: "WARP_MISALIGNED_REG",
    26: "WARP_ILLEGAL_INSTR_ENCODING",
    27: "WARP_ILLEGAL_INSTR_PARAM",
    28: "WARP_OUT_OF_RANGE_REGISTER",
    29: "WARP_INVALID_CONST_ADDR_LDC",
    30: "WARP_MMU_FAULT",
    31: "WARP_ARRIVE",
    32: "CLUSTER_POISON",
    33: "WARP_API_STACK_ERROR",
    34: "WARP_BLOCK_NOT_PRESENT",
    35: "WARP_USER_STACK_OVERFLOW",
    36: "TMA_SYSCALL",
    UNKNOWN_EXCEPTION: "UNKNOWN",
}
# The MMU's, which UVM events describe better.  What dumps of such faults contain under MPS was not measured.
MMU_EXCEPTIONS = frozenset({1, 10, 14, 30})
DEVICE_EXCEPTIONS = frozenset({32})  # an uncorrectable error of memory


def name_of(kind: int) -> str:
    return EXCEPTIONS.get(kind, f"exception {kind}")
