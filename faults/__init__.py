"""The fault campaign: kills, damaged files, full disks, nonsense settings. See faults/README.md."""
