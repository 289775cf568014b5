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
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err1 == nil && err2 == nil {
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
