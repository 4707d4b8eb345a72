"""Reference pages made from the code they describe."""
