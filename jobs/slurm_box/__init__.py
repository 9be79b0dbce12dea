"""What jobs/slurm-in-a-box is made of: commands, the folder of a box, the keeper of its daemons, processes."""
