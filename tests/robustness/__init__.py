"""What happens to a run from outside: kills, full disks, threads, forks, global settings, exceptions."""
