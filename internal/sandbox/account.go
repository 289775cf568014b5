package sandbox

import (
	"errors"
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// ServerAccount returns the account that Postgres runs as: our own (nil), unless that is
// root, which Postgres refuses. Then it is the first unprivileged account that exists.
// Error: there is none.
func ServerAccount() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		if u, err := user.Lookup(name); err == nil {
			uid, _ := strconv.Atoi(u.Uid) // on Unix it is a number
			gid, _ := strconv.Atoi(u.Gid)
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
		}
	}
	return nil, errors.New("Postgres does not run as root, and there is neither a user postgres nor nobody")
}

// Give gives a file or a folder to the account; nil = it stays ours.
func Give(path string, as *syscall.Credential) error {
	if as == nil {
		return nil
	}
	return os.Chown(path, int(as.Uid), int(as.Gid))
}

// WriteFile writes a file that only the account may read.
func WriteFile(path, text string, as *syscall.Credential) error {
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return err
	}
	return Give(path, as)
}
