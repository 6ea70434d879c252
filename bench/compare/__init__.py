"""The same reads on any mounted directories, side by side: NFS, rclone, JuiceFS, s3fs, sshfs, Headrace, a local disk."""
