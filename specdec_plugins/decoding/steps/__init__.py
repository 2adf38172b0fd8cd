"""Pure steps, functions of tensors that a model's weights make, and the caches they read."""
