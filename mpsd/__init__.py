"""mpsd: CUDA MPS with fault domains, a replacement for nvidia-cuda-mps-control."""

__version__ = "0.1.0"
