"""Engine replicas, their evidence, and the simulated engine.

The only room that imports vllm or nixl.
"""
