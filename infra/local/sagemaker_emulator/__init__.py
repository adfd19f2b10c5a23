"""The local platform: AWS services emulated on this machine."""
