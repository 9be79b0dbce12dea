"""All systems on the same work and the same devices: what `./workshop.py compare --all` shows."""
