"""mpsd: CUDA MPS with fault domains, behind the face of nvidia-cuda-mps-control."""

__version__ = "0.1.0"
