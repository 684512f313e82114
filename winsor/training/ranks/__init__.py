"""One training over several processes: each rank computes a part, and one release leaves.

ranks.py     who is here; what all must agree on; sums over ranks
ledger.py    one ledger: rank 0 writes, and no rank draws noise before it has written
noise.py     large sums are noised in slices, one per rank
sharded.py   models sharded by FSDP2
shard_sums.py  their clipped sums: reduce-scattered, noised part by part
shard_files.py  tensors of all ranks in a folder, through torch.distributed.checkpoint
uneven.py    steps in which some ranks have no rows
view.py      all rows of a logical batch, for rules that must see them at once
wrapped.py   models inside DistributedDataParallel
"""
