"""What `scripts/device_check.sh` runs: turret on a real GPU, checked and measured into one JSON file."""
