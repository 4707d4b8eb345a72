"""Wrong backends on purpose: the suite's own test is whether it notices them."""
