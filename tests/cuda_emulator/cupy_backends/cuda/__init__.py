"""The driver and runtime interfaces, under the names that CuPy gives them."""
