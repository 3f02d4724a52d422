"""The event-sparse engine on NVIDIA GPUs: kernels in codelets/gpu, with the numbers of the engine `cpu`."""
