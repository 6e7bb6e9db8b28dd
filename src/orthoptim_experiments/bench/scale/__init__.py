"""What a step of sharded matrices costs each rank of worlds that are larger than this machine.

One rank at a time runs the library's own code, on parameters without data (the meta device) and a process group without
peers (torch's fake one); what it says, allocates and multiplies on the way is counted.
"""
