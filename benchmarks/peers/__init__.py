"""The programs that turret is measured against."""
