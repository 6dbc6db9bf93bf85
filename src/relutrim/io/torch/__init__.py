"""PyTorch: modules and exported programs as graphs, by one table of ATen's operators."""
