"""Building blocks that several papers share, or that are large enough for a file of their own.

- `dropout_masks`: reproducible dropout masks from a seed.
- `features`: the feature maps φ of linear attention (elu + 1, ReLU, FAVOR+ of Performer, any function).
- `kernel_attention`: the base class of mechanisms that are linear attention with some φ.
- `kmeans`: spherical k-means with moving averages (Routing Transformer).
- `lsh`: hashing by random rotations (Reformer).
- `relative_labels`: a window and global keys with learned relative position labels (ETC).
- `shared_prefix_cache`: the key cache of beams that share a prefix.
- `sinkhorn_balance`: the sort network and Sinkhorn balancing (Sparse Sinkhorn attention).
- `value_convolution`: a short convolution over the values of each head (Nyströmformer).
"""
