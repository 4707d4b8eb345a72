"""Speed: one call of every slot at the sizes of a small model, beside what this machine could do."""
