"""The cost of a step of sharded matrices for each rank, in worlds larger than this machine.

One rank at a time runs the library's own code, on parameters without data (the meta device) and a process group without
peers (torch's fake one); its communication, allocations and products are counted.
"""
